//! Folders of pods on a real disk.

use std::cell::Cell;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use schema::kinds::cluster::PodSecurity;
use schema::kinds::pod::{ContainerState, ContainerStatus, HostPathType};

use super::folders::{remove_pod, remove_tree_of};
use super::prepare::prepare;
use super::spec::{AllowedDirectory, HostPathBounds, SubPath, VolumeError, VolumePrep};
use super::sub_path::mount_sub_path;
use crate::converge::pods::facts::{NodeFacts, Placement};
use crate::converge::pods::tests::crash::Rig;
use crate::converge::pods::tests::crowd::until_status;
use crate::converge::pods::tests::{binding, node};
use crate::{mounts, names};
use schema::testing::pod_spec;

#[test]
fn an_empty_dir_is_the_pods_own_once_it_is_made() {
    let state = tempfile::tempdir().unwrap();
    for (volume, tmpfs_bytes, group) in
        [("disk", None, None), ("shared", None, Some(2000)), ("memory", Some(1 << 20), Some(2000))]
    {
        let path = names::volume_dir(state.path(), "uid", volume);
        let prep = VolumePrep::EmptyDir { path: path.clone(), tmpfs_bytes, group, no_exec: false };
        prepare(&prep).unwrap();
        let made = std::fs::metadata(&path).unwrap();
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        assert_eq!((made.mode() & 0o7777, made.gid()), (mode, group.unwrap_or(0)), "{volume}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        prepare(&prep).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700, "{volume}");
    }
    remove_pod(state.path(), "uid").unwrap();
    assert!(!names::pods_dir(state.path()).join("uid").exists());
}

// Seen red without `open_to`: 0755 of root, whatever the volume is.
#[test]
fn a_folder_made_for_a_sub_path_is_as_open_as_its_volume() {
    let state = tempfile::tempdir().unwrap();
    for (volume, group) in [("disk", None), ("shared", Some(2000))] {
        let root = names::volume_dir(state.path(), "uid", volume);
        prepare(&VolumePrep::EmptyDir { path: root.clone(), tmpfs_bytes: None, group, no_exec: false })
            .unwrap();
        std::fs::create_dir(root.join("there")).unwrap();
        std::fs::set_permissions(root.join("there"), std::fs::Permissions::from_mode(0o700)).unwrap();
        for (index, path) in ["deep/er", "there/in", "deep/er"].into_iter().enumerate() {
            let target = names::sub_path_dir(state.path(), "uid", volume, 0, index);
            mount_sub_path(&SubPath {
                root: root.clone(),
                bounds: None,
                path: path.into(),
                expression: None,
                target,
                create: true,
            })
            .unwrap();
        }
        let found = |path: &str| {
            let made = std::fs::metadata(root.join(path)).unwrap();
            (made.mode() & 0o7777, made.gid())
        };
        let open = found("");
        assert_eq!(open, (if group.is_some() { 0o2777 } else { 0o777 }, group.unwrap_or(0)));
        assert_eq!([found("deep"), found("deep/er"), found("there/in")], [open; 3], "{volume}");
        // The existing folder keeps its mode.
        assert_eq!(found("there").0 & 0o777, 0o700, "{volume}");
    }
    remove_pod(state.path(), "uid").unwrap();
}

#[test]
fn a_folder_for_a_sub_path_whose_making_was_cut_off_is_made_after_all() {
    let state = tempfile::tempdir().unwrap();
    let root = names::volume_dir(state.path(), "uid", "disk");
    prepare(&VolumePrep::EmptyDir {
        path: root.clone(),
        tmpfs_bytes: None,
        group: Some(2000),
        no_exec: false,
    })
    .unwrap();
    let left = root.join(".uid_a_0_0.new");
    std::fs::create_dir(&left).unwrap();
    let target = names::sub_path_dir(state.path(), "uid", "a", 0, 0);
    mount_sub_path(&SubPath {
        root: root.clone(),
        bounds: None,
        path: "data".into(),
        expression: None,
        target,
        create: true,
    })
    .unwrap();
    let made = std::fs::metadata(root.join("data")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.gid()), (0o2777, 2000));
    assert!(!left.exists());
    remove_pod(state.path(), "uid").unwrap();
}

fn host_path(directory: &Path, path: &str, kind: HostPathType) -> VolumePrep {
    VolumePrep::HostPath { path: directory.join(path), kind, bounds: Some(bounds(directory, path)) }
}

fn bounds(directory: &Path, path: &str) -> HostPathBounds {
    let (directory, path) = (directory.to_owned(), path.to_owned());
    let forbidden = vec![directory.join("private").display().to_string()];
    HostPathBounds { allowed: Some(AllowedDirectory { directory, narrower: None, path }), forbidden }
}

// Seen red with the path itself opened, as without bounds.
#[test]
fn no_link_in_an_allowed_directory_shows_what_is_elsewhere() {
    let host = tempfile::tempdir().unwrap();
    let (state, allowed, outside) =
        (host.path().join("state"), host.path().join("allowed"), host.path().join("outside"));
    for folder in [&allowed.join("real"), &allowed.join("private/deep"), &outside] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(allowed.join("real/file"), "seen").unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    for (link, target) in [
        ("out", "../outside"),
        ("absolute", outside.to_str().unwrap()),
        ("root", "/proc/self/root"),
        ("inner", "real"),
        ("hidden", "private/deep"),
        ("itself", "."),
    ] {
        std::os::unix::fs::symlink(target, allowed.join(link)).unwrap();
    }
    let starts = Cell::new(0);
    let mounted = |path: &str| {
        starts.set(starts.get() + 1);
        let target = names::sub_path_dir(&state, "uid", "a", starts.get(), 0);
        let sub = SubPath {
            root: allowed.join(path),
            bounds: Some(bounds(&allowed, path)),
            path: String::new(),
            expression: None,
            target: target.clone(),
            create: true,
        };
        mount_sub_path(&sub).map(|()| target)
    };
    for path in ["out", "out/secret", "absolute", "root", "root/etc", "inner/../../outside"] {
        for refused in [
            prepare(&host_path(&allowed, path, HostPathType::Unset)).err(),
            prepare(&host_path(&allowed, path, HostPathType::FileOrCreate)).err(),
            mounted(path).err(),
        ] {
            let refused = refused.unwrap_or_else(|| panic!("{path} was shown"));
            assert!(refused.to_string().contains("podSecurity.allowHostPaths limits it to"), "{refused}");
        }
    }
    for path in ["hidden", "private", "itself"] {
        let refused = mounted(path).unwrap_err().to_string();
        assert!(refused.contains("which podSecurity.forbidHostPaths forbids"), "{path}: {refused}");
    }
    for (path, kind) in [
        ("out/new", HostPathType::DirectoryOrCreate),
        ("out/new", HostPathType::FileOrCreate),
        ("absolute/new/er", HostPathType::Unset),
    ] {
        prepare(&host_path(&allowed, path, kind)).unwrap_err();
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "something was created outside");

    // What stays within goes on as before.
    for (path, kind) in [
        ("inner", HostPathType::Directory),
        ("inner/file", HostPathType::File),
        ("new/er", HostPathType::DirectoryOrCreate),
        ("new/er", HostPathType::Unset),
        ("new/file", HostPathType::FileOrCreate),
    ] {
        prepare(&host_path(&allowed, path, kind)).unwrap();
        mounted(path).unwrap();
    }
    assert_eq!(std::fs::read_to_string(mounted("inner").unwrap().join("file")).unwrap(), "seen");
    let none = prepare(&host_path(&allowed, "inner", HostPathType::Socket)).unwrap_err().to_string();
    assert!(none.contains("is not an existing socket"), "{none}");
    prepare(&host_path(&host.path().join("fresh"), "a", HostPathType::DirectoryOrCreate)).unwrap();
    assert!(host.path().join("fresh/a").is_dir(), "the allowed directory is created, too");
    remove_pod(&state, "uid").unwrap();
}

// Seen red with mounts that are detached while they are shared.
#[test]
fn a_host_path_shows_the_nodes_mounts_and_takes_none_with_it() {
    let host = tempfile::tempdir().unwrap();
    let (state, allowed) = (host.path().join("state"), host.path().join("allowed"));
    let none = None::<&str>;
    let tmpfs = |at: &Path| {
        std::fs::create_dir_all(at).unwrap();
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), none).unwrap();
    };
    tmpfs(&allowed);
    mount(none, &allowed, none, MsFlags::MS_SHARED, none).unwrap();
    tmpfs(&allowed.join("disk"));
    std::fs::write(allowed.join("disk/file"), "x").unwrap();
    let target = names::sub_path_dir(&state, "uid", "a", 0, 0);
    let sub = SubPath {
        root: allowed.clone(),
        bounds: Some(HostPathBounds { forbidden: Vec::new(), ..bounds(&allowed, "") }),
        path: String::new(),
        expression: None,
        target: target.clone(),
        create: true,
    };
    mount_sub_path(&sub).unwrap();
    tmpfs(&allowed.join("later"));
    std::fs::write(allowed.join("later/file"), "x").unwrap();
    let shown = ["disk", "later"].map(|disk| target.join(disk).join("file").exists());
    // As an agent leaves it that ends before the mount is a slave.
    let left = names::sub_path_dir(&state, "uid", "b", 0, 0);
    std::fs::create_dir_all(&left).unwrap();
    mount(Some(&allowed), &left, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).unwrap();
    let removed = remove_pod(&state, "uid");
    // A volume that holds the state directory itself.
    let inside = allowed.join("state");
    for attempt in 0..3 {
        let target = names::sub_path_dir(&inside, "uid", "a", attempt, 0);
        mount_sub_path(&SubPath { target, ..sub.clone() }).unwrap();
    }
    let copies = mounts::at_or_below(&inside).unwrap().len();
    remove_pod(&inside, "uid").unwrap();
    let stayed = ["disk", "later"].map(|disk| allowed.join(disk).join("file").exists());
    umount2(&allowed, MntFlags::MNT_DETACH).unwrap();
    removed.unwrap();
    assert_eq!((shown, stayed, copies), ([true; 2], [true; 2], 3));
}

#[test]
fn a_host_path_is_bounded_by_the_policy_in_force() {
    let (mut node, ports) = (node(), Vec::new());
    let mut pod = pod_spec(&["a"]);
    pod.volumes = serde_json::from_value(serde_json::json!([
        {"name": "in", "hostPath": {"path": "/srv/./data//x"}}, {"name": "out", "hostPath": {"path": "/opt"}}
    ]))
    .unwrap();
    pod.containers[0].volume_mounts = serde_json::from_value(serde_json::json!([
        {"name": "in", "mountPath": "/in"}, {"name": "in", "mountPath": "/part", "subPath": "y"},
        {"name": "out", "mountPath": "/out"}
    ]))
    .unwrap();
    let web = binding("web", pod);
    let rendered = |node: &_| {
        let at = Placement { node, binding: &web, address: None, ports: &ports };
        let (mounts, subs) = super::render::mounts(at, &web.pod.spec.containers[0], 0).unwrap();
        let sources: Vec<_> = mounts.into_iter().map(|mount| mount.source).collect();
        (sources, subs, super::render::volumes(at))
    };
    let target = |index| names::sub_path_dir(&node.state_dir, &web.pod.uid, "a", 0, index);
    let (targets, [inner, opt]) = ([target(0), target(1)], ["/srv/./data//x", "/opt"].map(PathBuf::from));
    let (sources, subs, _) = rendered(&node);
    assert_eq!((sources, subs.len()), (vec![inner, targets[1].clone(), opt], 1));

    node.pod_security.allow_host_paths = vec!["/srv".to_owned()];
    node.pod_security.forbid_host_paths = vec!["/srv/private".to_owned()];
    let (sources, subs, preps) = rendered(&node);
    assert_eq!(sources, [targets[0].clone(), targets[1].clone(), target(2)]);
    let allowed = AllowedDirectory { directory: "/srv".into(), narrower: None, path: "data/x".to_owned() };
    let forbidden = vec!["/srv/private".to_owned()];
    let wanted = HostPathBounds { allowed: Some(allowed), forbidden: forbidden.clone() };
    let outside = HostPathBounds { allowed: None, forbidden };
    let found: Vec<_> = subs.iter().map(|sub| (sub.path.as_str(), sub.bounds.as_ref())).collect();
    assert_eq!(found, [("", Some(&wanted)), ("y", Some(&wanted)), ("", Some(&outside))]);
    let of_volumes = preps.iter().map(|prep| match prep {
        VolumePrep::HostPath { bounds, .. } => bounds.as_ref(),
        other => panic!("{other:?}"),
    });
    assert_eq!(of_volumes.collect::<Vec<_>>(), [Some(&wanted), Some(&outside)]);
}

/// Returns the bounds of a hostPath under these directories of the Cluster object and of the node, allowed ones first.
fn bounds_of(path: &str, cluster: [&[&str]; 2], floor: [&[&str]; 2]) -> Option<HostPathBounds> {
    let policy = |[allowed, forbidden]: [&[&str]; 2]| PodSecurity {
        allow_host_paths: allowed.iter().map(|path| (*path).to_owned()).collect(),
        forbid_host_paths: forbidden.iter().map(|path| (*path).to_owned()).collect(),
        ..PodSecurity::default()
    };
    let node =
        NodeFacts { pod_security: policy(cluster), pod_security_floor: Arc::new(policy(floor)), ..node() };
    let mut pod = pod_spec(&["a"]);
    let volume = serde_json::json!([{"name": "v", "hostPath": {"path": path}}]);
    pod.volumes = serde_json::from_value(volume).unwrap();
    let web = binding("web", pod);
    let at = Placement { node: &node, binding: &web, address: None, ports: &[] };
    match super::render::volumes(at).pop() {
        Some(VolumePrep::HostPath { bounds, .. }) => bounds,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_path_is_bounded_by_the_node_and_by_the_cluster() {
    let of = |cluster: &[&str], floor: &[&str], path: &str| {
        let found = bounds_of(path, [cluster, &["/srv/one"]], [floor, &["/srv/two"]])?;
        assert_eq!(found.forbidden, ["/srv/one", "/srv/two"]);
        let AllowedDirectory { directory, narrower, path } = found.allowed?;
        Some(format!("{} {narrower:?} {path}", directory.display()))
    };
    let is = |text: &str| Some(text.to_owned());
    // Of the node alone: the Cluster object may have lost its own, or have none.
    assert_eq!(of(&[], &["/srv"], "/srv/a/x"), is("/srv None a/x"));
    assert_eq!(of(&["/"], &["/srv"], "/srv/a/x"), is("/srv None a/x"));
    // Of both, whichever is the narrower.
    for (cluster, floor) in [("/srv", "/srv/a"), ("/srv/a", "/srv")] {
        assert_eq!(of(&[cluster], &[floor], "/srv/a/b/x"), is(r#"/srv Some("a") b/x"#));
        assert_eq!(of(&[cluster], &[floor], "/srv/a"), is("/srv None a"));
    }
    assert_eq!(of(&["/srv"], &["/srv/"], "/srv/a"), is("/srv None a"));
    assert_eq!(of(&["/srv/a"], &["/opt"], "/srv/a/x"), is("/srv/a None x"));
}

#[test]
fn a_policy_that_forbids_the_path_as_written_is_newer_than_the_pod() {
    let of = |path: &str, cluster: &[&str], floor: &[&str]| {
        let found = bounds_of(path, [&[], cluster], [&[], floor])?;
        assert_eq!(found.allowed, None);
        Some(found.forbidden)
    };
    let is = |list: &[&str]| Some(list.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
    assert_eq!(of("/data", &[], &[]), None);
    assert_eq!(of("/data", &["/run", "/etc"], &[]), is(&["/run", "/etc"]));
    assert_eq!(of("/data", &["/run"], &["/etc"]), is(&["/run", "/etc"]));
    assert_eq!(of("/run/x", &["/run"], &["/etc"]), is(&["/etc"]));
    assert_eq!(of("/run/x", &["/etc"], &["/run", "/boot"]), is(&["/etc"]));
    assert_eq!(of("/run/x", &["/run"], &[]), None);
}

#[test]
fn no_link_leads_to_a_forbidden_directory_where_none_is_allowed() {
    let host = tempfile::tempdir().unwrap();
    let path = |name: &str| host.path().join(name);
    let state = path("state");
    for folder in ["real/run/app", "data", "disk"] {
        std::fs::create_dir_all(path(folder)).unwrap();
    }
    std::fs::write(path("disk/file"), "seen").unwrap();
    for (link, target) in [
        ("run", "real/run"),
        ("data/relative", "../real/run/app"),
        ("data/absolute", path("run").to_str().unwrap()),
        ("data/above", "../real"),
        ("data/all", "/proc"),
        ("data/process", "/proc/self/root"),
        ("alias", "run"),
        ("data/disk", path("disk").to_str().unwrap()),
    ] {
        std::os::unix::fs::symlink(target, path(link)).unwrap();
    }
    // Behind a link itself.
    let forbidden = vec![path("run").display().to_string()];
    let bounds = HostPathBounds { allowed: None, forbidden };
    let prepared = |name: &str, kind: HostPathType| {
        prepare(&VolumePrep::HostPath { path: path(name), kind, bounds: Some(bounds.clone()) })
    };
    let starts = Cell::new(0);
    let mounted = |name: &str| {
        starts.set(starts.get() + 1);
        let target = names::sub_path_dir(&state, "uid", "a", starts.get(), 0);
        let (bounds, inner) = (Some(bounds.clone()), String::new());
        let sub = SubPath {
            root: path(name),
            bounds,
            path: inner,
            expression: None,
            target: target.clone(),
            create: true,
        };
        mount_sub_path(&sub).map(|()| target)
    };
    for name in ["real/run", "data/relative", "data/absolute", "data/above", "data/all", "alias/app"] {
        for refused in [prepared(name, HostPathType::Unset).err(), mounted(name).err()] {
            let refused = refused.unwrap_or_else(|| panic!("{name} was shown")).to_string();
            assert!(refused.contains("which podSecurity.forbidHostPaths forbids"), "{name}: {refused}");
        }
    }
    for name in ["data/process", "data/process/etc"] {
        let refused = mounted(name).unwrap_err().to_string();
        assert!(refused.contains("may not lead through a process in /proc"), "{name}: {refused}");
    }
    for kind in [HostPathType::Unset, HostPathType::DirectoryOrCreate, HostPathType::FileOrCreate] {
        for name in ["alias/new", "data/absolute/new", "data/../run/new"] {
            prepared(name, kind).unwrap_err();
        }
        prepared("alias/new/er", kind).unwrap_err();
    }
    let made = std::fs::read_dir(path("real/run")).unwrap().count();
    assert_eq!(made, 1, "something was created in the forbidden directory");

    // What leads elsewhere goes on as before.
    for (name, kind) in [
        ("data/disk/new/er", HostPathType::Unset),
        ("data/disk/new/er", HostPathType::Directory),
        ("data/disk/new/file", HostPathType::FileOrCreate),
    ] {
        prepared(name, kind).unwrap();
        mounted(name).unwrap();
    }
    assert_eq!(std::fs::read_to_string(mounted("data/disk").unwrap().join("file")).unwrap(), "seen");
    remove_pod(&state, "uid").unwrap();
}

#[test]
fn a_link_in_the_outer_of_two_allowed_directories_is_not_followed_out_of_the_inner() {
    let host = tempfile::tempdir().unwrap();
    let path = host.path();
    std::fs::create_dir_all(path.join("inner/real")).unwrap();
    std::fs::create_dir_all(path.join("beside")).unwrap();
    std::os::unix::fs::symlink("../beside", path.join("inner/out")).unwrap();
    std::os::unix::fs::symlink("/etc", path.join("replaced")).unwrap();
    let prepared = |narrower: &str, inner: &str| {
        let (narrower_of, inner_of) = (Some(narrower.to_owned()), inner.to_owned());
        let allowed = AllowedDirectory { directory: path.to_owned(), narrower: narrower_of, path: inner_of };
        let bounds = HostPathBounds { allowed: Some(allowed), forbidden: Vec::new() };
        let path = path.join(narrower).join(inner);
        prepare(&VolumePrep::HostPath { path, kind: HostPathType::DirectoryOrCreate, bounds: Some(bounds) })
    };
    prepared("inner", "real").unwrap();
    prepared("missing", "new").unwrap();
    assert!(path.join("missing/new").is_dir());
    for (narrower, inner) in [("inner", "out"), ("inner", "out/new"), ("replaced", "ssl")] {
        let refused = prepared(narrower, inner).unwrap_err().to_string();
        let limit = format!("limits it to {}", path.join(narrower).display());
        assert!(refused.contains(&limit), "{refused}");
    }
    assert!(!path.join("beside/new").exists());
}

// The mount in between is on the same disk, so the device number does not reveal it.
#[test]
fn nothing_is_removed_of_what_is_mounted_in_a_pods_folder() {
    let state = tempfile::tempdir().unwrap();
    let (pods, precious) = (names::pods_dir(state.path()), state.path().join("precious"));
    let inside = pods.join("uid").join("subpaths").join("a_0_0");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::create_dir_all(&precious).unwrap();
    std::fs::write(precious.join("data"), "data").unwrap();
    std::os::unix::fs::symlink(&precious, pods.join("uid").join("link")).unwrap();
    mount(Some(&precious), &inside, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let refused = remove_tree_of(state.path(), "uid");
    umount2(&inside, MntFlags::MNT_DETACH).unwrap();
    assert!(matches!(refused, Err(VolumeError::StillMounted { path }) if path == inside));
    remove_pod(state.path(), "uid").unwrap();
    assert!(!pods.join("uid").exists());
    assert_eq!(std::fs::read_to_string(precious.join("data")).unwrap(), "data");
}

// Seen red with a failure of `mount_sub_paths` as trouble of the whole pod: neither container runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sub_path_that_cannot_be_used_stops_its_own_container_alone() {
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("file"), "no folder").unwrap();
    let mount = |path: &str| serde_json::json!([{"name": "host", "mountPath": "/data", "subPath": path}]);
    let spec = serde_json::json!({
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "host", "hostPath": {"path": host.path()}}],
        "containers": [
            {"name": "bad", "image": "app:1", "volumeMounts": mount("file/in/it")},
            {"name": "good", "image": "app:1", "volumeMounts": mount("folder")}
        ]
    });
    let web = binding("web", serde_json::from_value(spec).unwrap());
    let mut rig = Rig::new();
    rig.want_pod(web.clone(), true);
    let status = until_status(&rig, &web, "one runs, one says why not", |status| {
        let states: Vec<_> = status.container_statuses.iter().map(|one| &one.state).collect();
        matches!(states[..], [ContainerState::Waiting(why), ContainerState::Running(_)]
            if why.reason == "CreateContainerConfigError" && why.message.contains("subPath file/in/it"))
    });
    assert_eq!(status.await.reason, "", "the pod as a whole is well");
    // The obstacle is removed.
    std::fs::remove_file(host.path().join("file")).unwrap();
    rig.agent_until("both run", Rig::complete).await;
}

/// Messages are the kubelet's (`makeMounts` in pkg/kubelet/kubelet_pods.go).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_with_variables_is_expanded_and_stays_in_its_volume() {
    let host = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/etc", host.path().join("out")).unwrap();
    let container = |name: &str, expression: &str| {
        serde_json::json!({
            "name": name, "image": "app:1",
            "env": [
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "UP", "value": ".."}, {"name": "LINK", "value": "out"}, {"name": "EMPTY"}
            ],
            "volumeMounts": [{"name": "host", "mountPath": "/data", "subPathExpr": expression}]
        })
    };
    let failing = [
        ("gone", "$(NOT)/$(EMPTY)", "subPathExpr $(NOT)/$(EMPTY): missing value for EMPTY, NOT"),
        ("up", "a/$(UP)", "unable to provision SubPath `a/$(UP)`: must not contain '..'"),
        ("out", "$(LINK)/ssl", "subPath $(LINK)/ssl cannot be used"),
    ];
    let mut containers: Vec<_> = failing.iter().map(|(name, path, _)| container(name, path)).collect();
    containers.push(container("good", "$(POD)/$$(POD)"));
    let spec = serde_json::json!({
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "host", "hostPath": {"path": host.path()}}],
        "containers": containers
    });
    let web = binding("web", serde_json::from_value(spec).unwrap());
    let mut rig = Rig::new();
    rig.want_pod(web.clone(), true);
    let status = until_status(&rig, &web, "one runs, the others say why not", |status| {
        let is_right = |(one, wanted): (&ContainerStatus, Option<&str>)| match (&one.state, wanted) {
            (ContainerState::Waiting(why), Some(wanted)) => why.message.contains(wanted),
            (state, wanted) => matches!(state, ContainerState::Running(_)) && wanted.is_none(),
        };
        let wanted = failing.iter().map(|(.., wanted)| Some(*wanted)).chain([None]);
        !status.container_statuses.is_empty() && status.container_statuses.iter().zip(wanted).all(is_right)
    });
    assert_eq!(status.await.reason, "", "the pod as a whole is well");
    assert!(host.path().join("web/$(POD)").is_dir());
}
