//! The pause image: the embedded program wrapped as an archive for `docker load`.
//!
//! Its name is derived from the program's bytes, so two agents of one build share an image and a new build brings a
//! new one. Equal programs give equal archives, byte for byte.

use schema::codec::hex;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::host::architecture;

/// The program built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// Repository part of the image's name.
pub const IMAGE_REPOSITORY: &str = "minik8s/pause";

/// Path of the program in the image.
const ENTRYPOINT: &str = "pause";

/// `minik8s/pause:<first 12 hex digits of the program's SHA-256>`.
pub fn image_reference() -> String {
    let digest = sha256(PROGRAM);
    format!("{IMAGE_REPOSITORY}:{}", &digest[..12])
}

/// The image as an archive for Docker's `POST /images/load`.
pub fn image_tar() -> Vec<u8> {
    let layer = tar_of(&[(ENTRYPOINT, PROGRAM, 0o755)]);
    let diff_id = sha256(&layer);
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        // A fixed time, so that equal programs give equal images.
        "created": "1970-01-01T00:00:00Z",
        "config": {"Entrypoint": [format!("/{ENTRYPOINT}")], "WorkingDir": "/", "StopSignal": "SIGTERM"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "minik8s-agent"}],
    })
    .to_string();
    let config_name = format!("{}.json", sha256(config.as_bytes()));
    let layer_name = format!("{diff_id}/layer.tar");
    let manifest =
        json!([{"Config": config_name, "RepoTags": [image_reference()], "Layers": [layer_name]}]).to_string();
    tar_of(&[
        (&config_name, config.as_bytes(), 0o644),
        (&layer_name, &layer, 0o644),
        ("manifest.json", manifest.as_bytes(), 0o644),
    ])
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Builds a tar of these files, owned by root and dated 1970.
fn tar_of(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_entry_type(tar::EntryType::Regular);
        builder.append_data(&mut header, name, *content).expect("a vector takes every write");
    }
    builder.into_inner().expect("a vector takes every write")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_a_small_static_executable() {
        assert_eq!(&PROGRAM[..4], b"\x7fELF");
        // e_type at offset 16: 2 is ET_EXEC; a dynamic one would be 3 and need a loader.
        assert_eq!(PROGRAM[16], 2);
        assert!(PROGRAM.len() < 64 * 1024, "{} bytes", PROGRAM.len());
    }

    #[test]
    fn equal_programs_give_equal_archives_named_by_content() {
        assert_eq!(image_tar(), image_tar());
        let reference = image_reference();
        let tag = reference.strip_prefix("minik8s/pause:").unwrap();
        assert_eq!(tag.len(), 12);
        assert!(sha256(PROGRAM).starts_with(tag));
    }

    #[test]
    fn the_archive_names_its_own_parts() {
        let archive = image_tar();
        let mut names = Vec::new();
        let mut manifest = String::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            if name == "manifest.json" {
                std::io::Read::read_to_string(&mut entry, &mut manifest).unwrap();
            }
            names.push(name);
        }
        let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], image_reference());
        assert!(names.iter().any(|n| manifest[0]["Config"] == **n), "{names:?}");
        assert!(names.iter().any(|n| manifest[0]["Layers"][0] == **n), "{names:?}");
    }
}
