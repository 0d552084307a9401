//! Runs the own tests of the program that serves Python functions: `agent/src/converge/builds/python/test_shim.py`.

use std::path::Path;
use std::process::Command;

#[test]
fn the_program_in_images_of_functions_keeps_its_contract() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/converge/builds/python/test_shim.py");
    let ran = Command::new("python3").arg(&tests).output().expect("python3 runs; apt-get install python3");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    println!("{}", said.lines().rev().take(4).collect::<Vec<_>>().join("\n"));
}
