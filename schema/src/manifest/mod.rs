//! (in work) YAML or JSON bytes to typed objects with file, line and column.
