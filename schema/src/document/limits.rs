//! Limits of the loader. Each is far above what people write and far below what hurts.

/// Largest file, in bytes. A pod takes about 1 KiB, so this is room for about two thousand; an object with 1 MiB of
/// content in base64 fits, too.
pub const FILE_MAX_BYTES: usize = 2 * 1024 * 1024;

/// Deepest nesting. The deepest path of any kind has under 12 steps.
pub const DEPTH_MAX: usize = 64;

/// Most values in a file, aliases expanded, including those of embedded YAML or JSON text. A pod has about 50; a
/// file of [`FILE_MAX_BYTES`] full of short list items has half a million, which is no manifest.
pub const NODES_MAX: usize = 250_000;

/// Most bytes of keys and values in a file, counted like [`NODES_MAX`]: a value that aliases repeat may be a
/// megabyte long. Four times what a file without aliases can hold.
pub const TEXT_MAX_BYTES: usize = 4 * FILE_MAX_BYTES;

/// Longest key of a manifest, in characters. The longest meaningful key, a label's, has 317.
pub const KEY_MAX_CHARS: usize = 512;

/// Most documents in a file.
pub const DOCUMENTS_MAX: usize = 4096;

/// Most violations reported for a file: a person fixes the first before reading on.
pub const VIOLATIONS_MAX: usize = 1000;

/// Largest object as JSON, in bytes: 64 KiB fit under one key of etcd, less the room for provenance, owner and
/// binding.
pub const OBJECT_MAX_BYTES: usize = 60 * 1024;
