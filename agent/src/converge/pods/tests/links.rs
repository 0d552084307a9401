//! Links of pods that are not whole.

use schema::testing::pod_spec;

use super::plan::{decide, has, up};
use super::{binding, container, facts, pause, running, wants};
use crate::converge::pods::steps::DecisionReason;
use crate::worlds::netlink::{HostEnd, host_link_name};

// Red when `link_is_off` checks only the name.
#[test]
fn a_link_that_is_not_whole_or_was_not_looked_at_yet_is_ensured() {
    let web = binding("web", pod_spec(&["a"]));
    let mut observed = wants(std::slice::from_ref(&web));
    has(
        &mut observed,
        &web,
        facts(&web, vec![pause(running(), "10.244.3.7")], vec![container("a", 0, running())]),
    );
    let name = host_link_name("mk8s", &web.pod.uid);
    let sender = Some([10, 244, 3, 7].into());
    let whole =
        HostEnd { bridge: Some("mk8s0".into()), up: true, hairpin: true, mtu: 1500, sender, has_ipv6: false };
    observed.work.linked.insert(web.pod.uid.clone());
    observed.links = Some([(name.clone(), whole.clone())].into());
    assert!(decide(&observed, &web, 0).task.is_none());
    for off in [
        HostEnd { bridge: None, ..whole.clone() },
        HostEnd { bridge: Some("br0".into()), ..whole.clone() },
        HostEnd { up: false, ..whole.clone() },
        HostEnd { hairpin: false, ..whole.clone() },
        HostEnd { mtu: 1450, ..whole.clone() },
        HostEnd { sender: None, ..whole.clone() },
        HostEnd { sender: Some([10, 244, 3, 8].into()), ..whole.clone() },
        HostEnd { has_ipv6: true, ..whole.clone() },
    ] {
        observed.links = Some([(name.clone(), off.clone())].into());
        let decision = decide(&observed, &web, 0);
        assert_eq!(decision.why, DecisionReason::LinkIncomplete, "{off:?}");
        let up = up(decision);
        assert!(up.link.is_some_and(|link| link.host_name == name) && up.containers.is_empty());
    }
    // An agent that has just started has not checked the inner end.
    observed.links = Some([(name, whole)].into());
    observed.work.linked.clear();
    assert!(up(decide(&observed, &web, 0)).link.is_some());
}
