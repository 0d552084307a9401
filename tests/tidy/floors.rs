//! Floors of the three crates: a room imports only from rooms on lower floors.

use std::collections::{BTreeMap, BTreeSet};

use crate::structure::{imports, of_crate};
use crate::{CRATES, check, rust};

/// Rooms of each crate, floor by floor, the ground first. A room is a folder or a file right in `src/`.
const FLOORS: [(&str, &[&[&str]]); 3] = [
    (
        "schema",
        &[
            &[
                "backoff",
                "codec",
                "condition",
                "errors",
                "file_text",
                "image",
                "mutex",
                "quantity",
                "since",
                "violation",
            ],
            &["archive", "document", "dockerfile", "meta", "names"],
            &["secrets"],
            &["content_refs"],
            &["kinds"],
            &["keys", "object", "records"],
            &["manifest"],
            &["explain", "snapshot"],
            &["trust"],
            &["store"],
            &["control"],
            &["metrics"],
        ],
    ),
    (
        "agent",
        &[
            &["clients", "cluster", "metrics", "mounts", "names", "publish", "trees"],
            &["desired", "http"],
            &["catalog", "node_address"],
            &["worlds"],
            &["packet_rules"],
            &["files", "standby"],
            &["converge"],
            &["args"],
            &["config"],
            &["locks"],
            &["api", "doctor", "join", "reset"],
            &["daemon"],
            &["main"],
        ],
    ),
    (
        "reconciler",
        &[
            &["text_file"],
            &[
                "crypt",
                "guarded_writes",
                "last_known",
                "listener",
                "metrics",
                "outgoing",
                "plural",
                "state_dir",
            ],
            &["controllers", "git", "trust", "upkeep"],
            &["blobs", "workflows"],
            &["simulate", "view"],
            &["gitops", "notifications", "webhooks"],
            &["api", "config", "diagnostics"],
            &["args", "daemon"],
            &["cli"],
            &["main"],
        ],
    ),
];

/// Arrows that run back up: the file, the room that it imports, the reason.
const BACK_UP: [(&str, &str, &str); 4] = [
    ("schema/src/content_refs.rs", "kinds", "a reference names the kind of its object"),
    ("schema/src/meta.rs", "kinds", "the name of an object includes its kind"),
    (
        "schema/src/kinds/workflow/dialect/states_language.rs",
        "manifest",
        "Amazon's spelling of a workflow is checked against the shape of its own schema before it is rewritten",
    ),
    ("agent/src/worlds/registry.rs", "files", "logins of a registry are decrypted from the pod's secrets"),
];

/// Most arrows that may run back up.
const BACK_UP_MAX: usize = 6;

/// Arrows between rooms that run up or stay on a floor, as file and room.
fn arrows_up(name: &str, floors: &[&[&str]]) -> (BTreeSet<(String, String)>, Vec<String>) {
    let floor_of: BTreeMap<&str, usize> = floors
        .iter()
        .enumerate()
        .flat_map(|(floor, rooms)| rooms.iter().map(move |room| (*room, floor)))
        .collect();
    let files = rust();
    let sources = of_crate(&files, name);
    let paths: BTreeMap<_, _> =
        sources.iter().map(|file| (crate::structure::module_of(&file.path, name), &file.path)).collect();
    let (mut up, mut unknown) = (BTreeSet::new(), Vec::new());
    for (from, to) in imports(&sources, name).edges() {
        let (Some(own), Some(other)) = (from.first(), to.first()) else { continue };
        if own == other {
            continue;
        }
        match (floor_of.get(own.as_str()), floor_of.get(other.as_str())) {
            (Some(own_floor), Some(floor)) if floor < own_floor => {}
            (Some(_), Some(_)) => drop(up.insert((paths[&from].clone(), other.clone()))),
            (own_floor, _) => {
                let room = if own_floor.is_none() { own } else { other };
                unknown
                    .push(format!("{name}/src/{room} is on no floor: give it one in tests/tidy/floors.rs"));
            }
        }
    }
    (up, unknown)
}

#[test]
fn no_arrow_between_rooms_runs_back_up() {
    assert!(BACK_UP.len() <= BACK_UP_MAX, "{} arrows back up, {BACK_UP_MAX} at most", BACK_UP.len());
    let (mut complaints, mut found) = (Vec::new(), BTreeSet::new());
    for (name, floors) in FLOORS {
        assert!(CRATES.contains(&name));
        let (up, unknown) = arrows_up(name, floors);
        complaints.extend(unknown);
        for (file, room) in up {
            if BACK_UP.iter().any(|(listed, target, _)| *listed == file && *target == room) {
                found.insert(file);
            } else {
                complaints.push(format!("{file}: imports {room}, which is not on a lower floor"));
            }
        }
    }
    let stale = BACK_UP.iter().filter(|(file, ..)| !found.contains(*file));
    complaints.extend(
        stale.map(|(file, room, _)| format!("{file}: no longer imports {room}; take it off the list")),
    );
    complaints.sort();
    complaints.dedup();
    check(&complaints);
}

#[test]
fn an_arrow_back_up_is_found() {
    let (up, _) = arrows_up("agent", &[&["worlds"], &["http", "clients"], &["converge"]]);
    assert!(up.iter().any(|(file, room)| file.starts_with("agent/src/worlds/") && room == "http"));
}
