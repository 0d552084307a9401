//! Detection of a new node address, and its publication.

use std::net::Ipv4Addr;

use schema::control::Loop as _;

use super::plan::{AddressFacts, STEADY};
use super::*;
use crate::worlds::netlink::{FakeNetlink, Tunnel};

// Seen red with `steady` always true.
#[test]
fn the_tunnel_moves_when_the_address_did_and_not_with_a_route_that_flaps() {
    let begun = std::time::Instant::now();
    let at = |seconds: u64| begun + Duration::from_secs(seconds);
    let [one, two] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let seen = |address, is_routed, keeps_former| AddressFacts { address, is_routed, keeps_former };
    let mut origin = AddressState { address: None, rival: None, will_move: false };
    assert_eq!(origin.update(seen(None, false, true), at(0)), None);
    assert_eq!(origin.update(seen(Some(one), false, true), at(0)), Some(one), "the first is taken as it is");
    for (second, address) in [(3, None), (6, Some(two)), (60, Some(two))] {
        let kept = origin.update(seen(address, false, true), at(second));
        assert_eq!(kept, Some(one), "without a default route the former stays");
        assert_eq!(origin.pending_move(at(second)), None, "however long");
    }
    origin.update(seen(Some(one), true, true), at(61));
    assert_eq!(origin.update(seen(Some(two), true, true), at(62)), Some(one), "a route flaps");
    assert_eq!(origin.update(seen(Some(one), true, true), at(65)), Some(one));
    assert_eq!(origin.update(seen(Some(two), true, true), at(68)), Some(one), "again: it counts anew");
    assert_eq!(origin.pending_move(at(69)), Some((two, Duration::from_secs(1))), "looked at again just then");
    assert_eq!(origin.update(seen(Some(two), true, true), at(70)), Some(two), "and stays");
    assert_eq!(origin.pending_move(at(70)), None);
    assert_eq!(origin.update(seen(Some(one), true, false), at(75)), Some(one), "the former is gone");
    assert_eq!(origin.update(seen(Some(two), false, false), at(78)), Some(one), "gone, and no route yet");
    assert_eq!(origin.update(seen(Some(two), false, false), at(80)), Some(two));
}

struct Rig {
    netlink: Arc<FakeNetlink>,
    the_loop: AddressLoop,
    published: watch::Receiver<Option<IpAddr>>,
}

impl Rig {
    fn new(first: Option<IpAddr>) -> Self {
        let netlink = Arc::new(FakeNetlink::default());
        let (address, published) = watch::channel(first);
        let the_loop = AddressLoop::new(netlink.clone(), netlink.clone(), address);
        Self { netlink, the_loop, published }
    }

    async fn run(&mut self) -> Next {
        let Observation::Ready(observed) = self.the_loop.observe().await.unwrap() else { panic!("ready") };
        let plan = AddressLoop::plan(&observed, Timestamp::now());
        self.the_loop.act(&observed, plan).await;
        self.the_loop.report(observed, ()).await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_there_at_a_start_gives_way_only_to_one_that_stays() {
    let former = Ipv4Addr::new(192, 0, 2, 9);
    let mut rig = Rig::new(Some(former.into()));
    rig.netlink.kernel().addresses.insert(former);
    assert_eq!(rig.run().await, Next::After(STEADY));
    assert_eq!(*rig.published.borrow(), Some(former.into()));
    tokio::time::advance(STEADY).await;
    assert_eq!(rig.run().await, Next::Interval);
    assert_eq!(*rig.published.borrow(), Some([192, 0, 2, 1].into()));
}

#[tokio::test]
async fn the_first_address_is_published_as_it_is_and_only_changes_wake_readers() {
    let mut rig = Rig::new(None);
    rig.run().await;
    assert_eq!(*rig.published.borrow_and_update(), Some([192, 0, 2, 1].into()));
    rig.run().await;
    assert!(!rig.published.has_changed().unwrap());
}

#[tokio::test]
async fn a_tunnel_says_where_it_leaves_from_while_that_is_an_address_of_the_node() {
    let netlink = FakeNetlink::default();
    let former = Ipv4Addr::new(192, 0, 2, 9);
    let there = Tunnel {
        name: "mk8s.1".into(),
        local: former,
        vni: 1,
        port: 8472,
        address: [10, 244, 3, 0].into(),
        mtu: 1450,
    };
    assert_eq!(tunnel_address(&netlink, "mk8s.1").await.unwrap(), None);
    netlink.kernel().tunnels.insert("mk8s.1".into(), (there, Default::default()));
    assert_eq!(tunnel_address(&netlink, "mk8s.1").await.unwrap(), None);
    netlink.kernel().addresses.insert(former);
    assert_eq!(tunnel_address(&netlink, "mk8s.1").await.unwrap(), Some(former));
}
