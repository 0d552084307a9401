//! Image garbage collection on a real engine. Fails where there is none.

#![allow(clippy::unwrap_used)] // A panic is how a test fails.

mod support;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use agent::converge::images::{ImagesDeps, ImagesLoop, Thresholds};
use agent::converge::shared::image_store::ImageBook;
use agent::worlds::docker::{Docker, RealDocker};
use agent::worlds::host::RealDisk;
use jiff::{SignedDuration, Timestamp};
use schema::control::{Loop as _, Observation};
use schema::store::events::EventRecorder;
use support::{SOCKET, docker};

/// An image with unique content under a name of this process; removed with the test.
struct Image(String);

impl Image {
    fn make(name: &str) -> Self {
        let image = format!("minik8s-test-gc/{}{name}:1", std::process::id());
        let make = format!(
            "d=$(mktemp -d) && head -c 100000 /dev/urandom > $d/noise && tar -C $d -c . | docker import - {image} && rm -r $d"
        );
        assert!(Command::new("sh").args(["-c", &make]).status().unwrap().success());
        Self(image)
    }

    fn id(&self) -> String {
        docker(&["image", "inspect", "-f", "{{.Id}}", &self.0])
    }

    fn is_there(&self) -> bool {
        Command::new("docker").args(["image", "inspect", &self.0]).output().unwrap().status.success()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", &self.0]).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_unused_image_that_we_pulled_goes() {
    let (unused, used, wanted, theirs) =
        (Image::make("unused"), Image::make("used"), Image::make("wanted"), Image::make("theirs"));
    let state = tempfile::tempdir().unwrap();
    let book = ImageBook::open(state.path());
    for ours in [&unused, &used, &wanted] {
        book.note_pulled(ours.id(), ours.0.clone(), None).await;
    }
    book.set_wanted(Some(BTreeSet::from([wanted.0.clone()])));
    // A container that was never started still uses its image, no matter who created it.
    let container = docker(&["create", &used.0, "/nothing"]);
    let mut images = ImagesLoop::new(ImagesDeps {
        node: "n1".into(),
        docker: Arc::new(RealDocker::connect(SOCKET).await.unwrap()) as Arc<dyn Docker>,
        disk: Arc::new(RealDisk),
        book: Arc::clone(&book),
        thresholds: Thresholds { high_percent: 1, low_percent: 0 },
        events: EventRecorder::disabled(),
    });
    let Ok(Observation::Ready(observed)) = images.observe().await else { panic!("ready") };
    assert!(ImagesLoop::plan(&observed, Timestamp::now()).remove.is_empty(), "all were in use a moment ago");
    let plan = ImagesLoop::plan(&observed, Timestamp::now() + SignedDuration::from_mins(3));
    let planned: Vec<_> = plan.remove.iter().map(|removal| removal.references.join(",")).collect();
    let outcome = images.act(&observed, plan).await;
    let there = [&unused, &used, &wanted, &theirs].map(Image::is_there);
    docker(&["rm", &container]);
    assert_eq!(planned, [unused.0.as_str()]);
    assert_eq!((outcome.removed.len(), outcome.failures), (1, Vec::new()));
    assert_eq!(there, [false, true, true, true]);
}
