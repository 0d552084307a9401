//! Rules that iptables prints differently from how they were written, as some versions do; without this module a
//! loop would rewrite them forever. Pure. A foreign change must not pass for a spelling: a chain is in doubt only
//! if it reads differently from the text written last, with the same number of rules. It is written once more, and
//! is a spelling if it reads the same again right after. An empty chain is never one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::ChainRef;
use super::saved::Words;

/// Comparable form of a chain's rules.
pub trait ChainText: Clone + PartialEq {
    /// Returns the number of rules.
    fn rules(&self) -> usize;
}

impl ChainText for Vec<Words> {
    fn rules(&self) -> usize {
        self.len()
    }
}

/// Written and printed form by chain.
pub type KnownSpellings<T> = BTreeMap<ChainRef, (T, T)>;

/// Chains that may have another spelling, with their printed form from before the second write.
pub type Doubts<T> = BTreeMap<ChainRef, T>;

/// Written rules, and their known spellings in this iptables.
#[derive(Debug)]
pub struct Spellings<T> {
    written: BTreeMap<ChainRef, T>,
    known: Arc<KnownSpellings<T>>,
}

impl<T> Default for Spellings<T> {
    fn default() -> Self {
        Self { written: BTreeMap::new(), known: Arc::default() }
    }
}

impl<T: ChainText> Spellings<T> {
    /// Returns the known spellings.
    pub fn known(&self) -> Arc<KnownSpellings<T>> {
        Arc::clone(&self.known)
    }

    /// Records that the chain was written while it read as in `there`. Adds it to `doubts` if that may be another
    /// spelling.
    pub fn wrote(&mut self, chain: &ChainRef, text: T, there: Option<&T>, doubts: &mut Doubts<T>) {
        if let Some(there) = there.filter(|there| may_be_spelling(&text, there))
            && self.written.get(chain) == Some(&text)
        {
            doubts.insert(chain.clone(), there.clone());
        }
        self.written.insert(chain.clone(), text);
    }

    /// Records that the chain was removed.
    pub fn dropped(&mut self, chain: &ChainRef) {
        self.written.remove(chain);
        if self.known.contains_key(chain) {
            Arc::make_mut(&mut self.known).remove(chain);
        }
    }

    /// Learns spellings from a read directly after the write, with no other change in between.
    pub fn learn<'a>(&mut self, doubts: Doubts<T>, printed: impl Fn(&ChainRef) -> Option<&'a T>)
    where
        T: 'a,
    {
        for (chain, before) in doubts {
            let Some(written) = self.written.get(&chain) else { continue };
            if printed(&chain) == Some(&before) && may_be_spelling(written, &before) {
                tracing::info!(%chain, "this iptables prints the rules of the chain in another spelling");
                Arc::make_mut(&mut self.known).insert(chain, (written.clone(), before));
            }
        }
    }
}

/// True if the forms differ, but have the same number of rules, and at least one.
fn may_be_spelling<T: ChainText>(written: &T, printed: &T) -> bool {
    written != printed && written.rules() == printed.rules() && printed.rules() > 0
}

/// True if only this agent has changed rules since `before`, given that its write took this many
/// [`loud_steps`](crate::worlds::iptables::loud_steps). If the kernel does not count changes, this is assumed: the
/// time in between is short.
pub fn only_we_wrote(before: Option<u32>, steps: u32, after: Option<u32>) -> bool {
    before.is_none() || after == before.map(|count| count.wrapping_add(steps))
}
