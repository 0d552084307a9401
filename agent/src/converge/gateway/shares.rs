//! Choice of a path's backend for a request: header rules first, then shares by weight. Pure, except for the lock
//! of [`Turns`].
//!
//! Shares are exact over time: successive requests get the points of a golden ratio sequence (Weyl's), every
//! stretch of which is spread evenly, so that of 10,000 requests each backend gets its share to within a few,
//! through any number of gateways. The sequence continues from table to table, so that frequent changes of the
//! cluster do not favor the first backend.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hyper::HeaderMap;
use hyper::header::COOKIE;
use schema::control::lock;
use schema::kinds::dns::StickyKey;
use schema::meta::NamespacedName;
use sha2::{Digest as _, Sha256};

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Destination of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Endpoints to choose from, sorted and never empty.
    Endpoints(Arc<[SocketAddr]>),
    Function(NamespacedName),
    Unavailable(String),
}

/// Backends of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// Groups with headers first, in the order of the manifest.
    groups: Vec<Group>,
    sticky: Option<StickyKey>,
}

/// Backends with the same headers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    headers: BTreeMap<String, String>,
    /// Key of the group in [`Turns`].
    key: Arc<str>,
    /// Members; never empty.
    members: Vec<Member>,
    /// Sum of all weights.
    total: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    weight: u32,
    leads: Destination,
}

/// A backend before grouping.
#[derive(Debug, Clone)]
pub struct Backend {
    pub weight: u32,
    pub headers: BTreeMap<String, String>,
    pub leads: Destination,
}

impl Shares {
    /// Creates the shares of the path that `key` names. A backend that leads nowhere leaves its share to the others
    /// with the same headers.
    pub fn new(key: &str, backends: Vec<Backend>, sticky: Option<StickyKey>) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        for backend in backends {
            let member = Member { weight: backend.weight, leads: backend.leads };
            match groups.iter_mut().find(|group| group.headers == backend.headers) {
                Some(group) => group.members.push(member),
                None => groups.push(Group {
                    key: format!("{key}#{}", groups.len()).into(),
                    headers: backend.headers,
                    members: vec![member],
                    total: 0,
                }),
            }
        }
        for group in &mut groups {
            let serves =
                |member: &Member| member.weight > 0 && !matches!(member.leads, Destination::Unavailable(_));
            if group.members.iter().any(serves) {
                group.members.retain(serves);
            }
            group.total = group.members.iter().map(|member| member.weight).sum();
        }
        groups.sort_by_key(|group| group.headers.is_empty());
        Self { groups, sticky }
    }

    /// Returns the destination of a request with these headers; `None` if no backend takes it.
    pub fn pick(&self, headers: &HeaderMap, turns: &Turns) -> Option<&Destination> {
        let has = |(name, value): (&String, &String)| {
            headers.get_all(name.as_str()).iter().any(|sent| sent.as_bytes() == value.as_bytes())
        };
        let group = self.groups.iter().find(|group| group.headers.iter().all(has))?;
        if let [only] = &group.members[..] {
            return Some(&only.leads);
        }
        let kept = self.sticky.as_ref().and_then(|sticky| sticky_value(sticky, headers));
        let point = kept.map_or_else(|| turns.next(&group.key), point_of);
        group.at(point)
    }

    /// Returns the endpoints if they are the same for every request, whatever its headers; otherwise `None`.
    pub fn sole_endpoints(&self) -> Option<&Arc<[SocketAddr]>> {
        match &self.groups[..] {
            [group] if group.headers.is_empty() => match &group.members[..] {
                [Member { leads: Destination::Endpoints(endpoints), .. }] => Some(endpoints),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns all possible destinations.
    pub fn leads(&self) -> impl Iterator<Item = &Destination> {
        self.groups.iter().flat_map(|group| group.members.iter().map(|member| &member.leads))
    }

    /// Returns the keys of the groups in [`Turns`].
    pub fn keys(&self) -> impl Iterator<Item = Arc<str>> {
        let many = self.groups.iter().filter(|group| group.members.len() > 1);
        many.map(|group| Arc::clone(&group.key))
    }
}

impl Group {
    /// Returns the member whose share contains the point, of the range from 0 to 2^64.
    fn at(&self, point: u64) -> Option<&Destination> {
        let place = (u128::from(point) * u128::from(self.total)) >> 64;
        let mut end = 0;
        let found = self.members.iter().find(|member| {
            end += u128::from(member.weight);
            place < end
        });
        found.or(self.members.first()).map(|member| &member.leads)
    }
}

/// Returns the request's sticky value, if any.
fn sticky_value<'h>(sticky: &StickyKey, headers: &'h HeaderMap) -> Option<&'h [u8]> {
    if let Some(name) = &sticky.header {
        return headers.get(name.as_str()).map(|value| value.as_bytes());
    }
    let name = sticky.cookie.as_deref()?;
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';'));
    let found = cookies.find_map(|one| one.trim().strip_prefix(name)?.strip_prefix('='));
    found.map(str::as_bytes)
}

/// Maps a value to a point, the same on every node.
fn point_of(value: &[u8]) -> u64 {
    let digest = Sha256::digest(value);
    digest.iter().take(8).fold(0, |point, byte| point << 8 | u64::from(*byte))
}

/// Last point of each path, shared by all requests.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<HashMap<Arc<str>, u64>>>);

impl Turns {
    /// Returns the next point. The first is random, or many gateways with few requests each would favor one backend.
    fn next(&self, key: &Arc<str>) -> u64 {
        // Each change is complete before anything can panic.
        let mut points = lock(&self.0);
        let point = points.entry(Arc::clone(key)).or_insert_with(rand::random);
        *point = point.wrapping_add(GOLDEN);
        *point
    }

    /// Forgets paths that no table has.
    pub fn retain(&self, keys: &BTreeSet<Arc<str>>) {
        lock(&self.0).retain(|key, _| keys.contains(key));
    }
}
