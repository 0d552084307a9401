//! Leftovers of builds in addition to their images: logs, and images without a name, such as stages that the image
//! does not descend from. Docker's builder reuses these for the next build, so they stay as long as the log of a
//! build names them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use jiff::Timestamp;

use super::{BuildsLoop, log_dir};
use crate::worlds::docker::StoredImage;

/// Prefix with which Docker's builder logs the image that a step produced.
const MADE: &str = " ---> ";
/// Digits of an image's id in a log.
const ID_DIGITS: usize = 12;

impl BuildsLoop {
    /// Returns the existing logs, by hash, with the time of their last write.
    pub(super) fn logs(&self) -> BTreeMap<String, Timestamp> {
        let files = fs::read_dir(log_dir(&self.deps.state_dir)).into_iter().flatten().flatten();
        let logs = files.filter_map(|file| {
            let hash = file.file_name().to_str()?.strip_suffix(".log")?.to_owned();
            let written = file.metadata().ok()?.modified().ok()?;
            Some((hash, Timestamp::try_from(written).ok()?))
        });
        logs.collect()
    }

    /// Removes logs, and the unnamed images that no other log names.
    pub(super) async fn remove_logs(&self, hashes: &[String]) {
        let made_by = |hash: &String| made_in(&fs::read_to_string(self.log_path(hash)).unwrap_or_default());
        let (gone, kept): (Vec<_>, Vec<_>) = self.logs().into_keys().partition(|hash| hashes.contains(hash));
        let kept: BTreeSet<String> = kept.iter().flat_map(made_by).collect();
        let gone_ids: BTreeSet<String> =
            gone.iter().flat_map(made_by).filter(|id| !kept.contains(id)).collect();
        if !gone_ids.is_empty() {
            // Images that can't be listed stay, until the disk's own limits apply.
            let images = self.deps.docker.images().await.unwrap_or_default();
            for id in nameless(&images, &gone_ids) {
                if let Err(error) = self.deps.docker.remove_image(id).await {
                    tracing::debug!(id, %error, "an image that a build left stays");
                }
            }
        }
        for hash in gone {
            let _ = fs::remove_file(self.log_path(&hash));
        }
    }
}

/// Returns the id prefixes of images that the steps of a build produced, or reused.
fn made_in(log: &str) -> BTreeSet<String> {
    let ids = log.lines().filter_map(|line| line.strip_prefix(MADE));
    let is_id = |id: &&str| id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    ids.filter(is_id).map(str::to_owned).collect()
}

/// Returns the images that have no name and one of these ids. A function prints anything, so a log may name any
/// image: one with a name belongs to somebody.
fn nameless<'i>(images: &'i [StoredImage], ids: &BTreeSet<String>) -> Vec<&'i str> {
    let is_one = |image: &&StoredImage| {
        let digits = image.id.strip_prefix("sha256:").and_then(|id| id.get(..ID_DIGITS));
        image.tags.is_empty() && digits.is_some_and(|digits| ids.contains(digits))
    };
    images.iter().filter(is_one).map(|image| image.id.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steps_made_and_nobody_named_goes_with_the_log() {
        let log = "Step 1/3 : FROM base AS packages\n ---> 0123456789ab\nStep 2/3 : RUN pip\n ---> Running in ffff\n\
                   said ---> aaaaaaaaaaaa\n ---> bbbbbbbbbbbb\nSuccessfully built cccccccccccc\n";
        let made = made_in(log);
        assert_eq!(made.iter().map(String::as_str).collect::<Vec<_>>(), ["0123456789ab", "bbbbbbbbbbbb"]);
        let image = |id: &str, tags: &[&str]| StoredImage {
            id: format!("sha256:{id}{}", "0".repeat(52)),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..StoredImage::default()
        };
        let images =
            [image("0123456789ab", &["base"]), image("bbbbbbbbbbbb", &[]), image("dddddddddddd", &[])];
        assert_eq!(nameless(&images, &made), [images[1].id.as_str()]);
    }
}
