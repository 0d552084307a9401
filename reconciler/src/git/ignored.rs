//! `.minik8signore`: gitignore syntax in any folder; the deeper file wins.

use std::collections::BTreeMap;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

pub const FILE_NAME: &str = ".minik8signore";

/// Ignore rules of a commit by folder (without a trailing slash; empty for the root).
#[derive(Debug, Clone, Default)]
pub struct IgnoreRules(BTreeMap<String, Gitignore>);

impl IgnoreRules {
    /// Compiles rules from pairs of folder and text; unreadable lines are skipped, as in Git.
    pub fn new<'a>(files: impl Iterator<Item = (&'a str, String)>) -> Self {
        let compile = |(folder, text): (&str, String)| {
            let mut builder = GitignoreBuilder::new("");
            for line in text.lines() {
                let _ = builder.add_line(None, line);
            }
            (folder.to_owned(), builder.build().unwrap_or_else(|_| Gitignore::empty()))
        };
        Self(files.map(compile).collect())
    }

    pub fn ignores(&self, path: &str) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let mut folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        loop {
            if let Some(rules) = self.0.get(folder) {
                let below = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
                match rules.matched_path_or_any_parents(below, false) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
            if folder.is_empty() {
                return false;
            }
            folder = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_ignored_as_git_would() {
        let files = [
            ("", "*.tmp.yaml\n/drafts/\n# comment\n".to_owned()),
            ("apps", "secret.yaml\n!keep.tmp.yaml\n".to_owned()),
        ];
        let rules = IgnoreRules::new(files.into_iter());
        for (path, ignored) in [
            ("a.yaml", false),
            ("a.tmp.yaml", true),
            ("deep/er/a.tmp.yaml", true),
            ("drafts/x/y.yaml", true),
            ("apps/drafts/y.yaml", false),
            ("apps/secret.yaml", true),
            ("apps/x/secret.yaml", true),
            ("secret.yaml", false),
            ("apps/keep.tmp.yaml", false),
        ] {
            assert_eq!(rules.ignores(path), ignored, "{path}");
        }
    }
}
