//! Folders of pods on a real disk.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use schema::kinds::pod::ContainerState;

use super::folders::{remove_pod, remove_tree_of};
use super::prepare::prepare;
use super::spec::{SubPath, VolumeError, VolumePrep};
use super::sub_path::mount_sub_path;
use crate::converge::pods::tests::binding;
use crate::converge::pods::tests::crash::Rig;
use crate::converge::pods::tests::crowd::until_status;
use crate::names;

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
            mount_sub_path(&SubPath { root: root.clone(), path: path.into(), target, create: true }).unwrap();
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
    mount_sub_path(&SubPath { root: root.clone(), path: "data".into(), target, create: true }).unwrap();
    let made = std::fs::metadata(root.join("data")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.gid()), (0o2777, 2000));
    assert!(!left.exists());
    remove_pod(state.path(), "uid").unwrap();
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
