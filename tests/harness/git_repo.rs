//! A bare repository that the cluster reads, and the working clone of the person who pushes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::outcome;
use crate::wait::secs;

/// The two repositories.
#[derive(Debug)]
pub struct GitRepo {
    bare: PathBuf,
    work: PathBuf,
}

/// A change of a working tree.
#[derive(Debug, Clone)]
pub enum Change {
    /// Writes a file.
    Write(String, String),
    /// Removes a file or folder.
    Remove(String),
    /// Moves a file.
    Rename(String, String),
}

impl Change {
    /// Writes a file.
    pub fn write(path: impl Into<String>, text: impl Into<String>) -> Self {
        Change::Write(path.into(), text.into())
    }

    /// Removes a file or folder.
    pub fn remove(path: impl Into<String>) -> Self {
        Change::Remove(path.into())
    }

    /// Moves a file.
    pub fn rename(from: impl Into<String>, to: impl Into<String>) -> Self {
        Change::Rename(from.into(), to.into())
    }
}

impl GitRepo {
    /// Creates both below `dir`, with a first commit on `main` that holds only a README.
    pub fn create(dir: &Path) -> Result<Self> {
        let repo = Self { bare: dir.join("repo.git"), work: dir.join("work") };
        fs::create_dir_all(&repo.work)?;
        git(dir, &["init", "-q", "--bare", "-b", "main", "repo.git"])?;
        git(&repo.bare, &["config", "receive.denyDeleteCurrent", "ignore"])?;
        git(&repo.work, &["init", "-q", "-b", "main", "."])?;
        git(&repo.work, &["remote", "add", "origin", &repo.bare.to_string_lossy()])?;
        repo.push(&[Change::write("README.md", "# What runs here\n")], "Begin")?;
        Ok(repo)
    }

    /// The bare repository.
    pub fn bare(&self) -> &Path {
        &self.bare
    }

    /// The working clone.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Applies the changes, commits and pushes to `main`; returns the commit's id.
    pub fn push(&self, changes: &[Change], message: &str) -> Result<String> {
        self.propose(changes, message)?;
        self.push_head()
    }

    /// Applies the changes and commits them in the clone only.
    pub fn propose(&self, changes: &[Change], message: &str) -> Result<()> {
        for change in changes {
            self.apply(change)?;
        }
        git(&self.work, &["add", "-A"])?;
        git(&self.work, &["commit", "-q", "--allow-empty", "-m", message])?;
        Ok(())
    }

    /// Commits the working tree and pushes it to `main`; returns the commit's id.
    pub fn commit_all(&self, message: &str) -> Result<String> {
        self.push(&[], message)
    }

    /// Moves `main` to a new history that shares no commit with the old one.
    pub fn push_unrelated(&self, files: &[Change], message: &str) -> Result<String> {
        git(&self.work, &["checkout", "-q", "--orphan", "unrelated"])?;
        git(&self.work, &["rm", "-rqf", "--ignore-unmatch", "."])?;
        for change in files {
            self.apply(change)?;
        }
        git(&self.work, &["add", "-A"])?;
        git(&self.work, &["commit", "-q", "--allow-empty", "-m", message])?;
        git(&self.work, &["branch", "-q", "-M", "main"])?;
        self.push_head()
    }

    /// Moves `main` to a commit that the clone knows, replacing any other.
    pub fn push_commit(&self, commit: &str) -> Result<String> {
        git(&self.work, &["checkout", "-q", "-f", "-B", "main", commit])?;
        self.push_head()
    }

    /// Removes the branch at the remote.
    pub fn delete_branch(&self) -> Result<()> {
        git(&self.work, &["push", "-q", "origin", "--delete", "main"]).map(|_| ())
    }

    /// Hides the remote (`false`), or brings it back.
    pub fn reachable(&self, there: bool) -> Result<()> {
        let away = self.bare.with_extension("away");
        let (from, to) = if there { (&away, &self.bare) } else { (&self.bare, &away) };
        fs::rename(from, to).with_context(|| format!("cannot move {}", from.display()))
    }

    /// Runs git in the working clone.
    pub fn git(&self, args: &[&str]) -> Result<String> {
        git(&self.work, args)
    }

    /// Commits the index as it is and pushes it to `main`; returns the commit's id.
    pub fn commit_index(&self, message: &str) -> Result<String> {
        git(&self.work, &["commit", "-q", "-m", message])?;
        self.push_head()
    }

    /// Empties the bare repository, as if it had been recreated.
    pub fn make_anew(&self) -> Result<()> {
        for dir in [self.bare.clone(), self.bare.with_extension("away")] {
            if dir.exists() {
                fs::remove_dir_all(&dir)?;
            }
        }
        git(&self.work, &["init", "-q", "--bare", "-b", "main", &self.bare.to_string_lossy()])?;
        git(&self.bare, &["config", "receive.denyDeleteCurrent", "ignore"]).map(|_| ())
    }

    /// Restores both repositories after any damage: recreates the bare one, and makes `main` a new commit on top of
    /// `commit` with the same files; returns its id.
    pub fn restore(&self, commit: &str, message: &str) -> Result<String> {
        self.make_anew()?;
        git(&self.work, &["checkout", "-q", "-f", "-B", "main", commit])?;
        git(&self.work, &["clean", "-qfdx"])?;
        git(&self.work, &["commit", "-q", "--allow-empty", "-m", message])?;
        self.push_head()
    }

    fn push_head(&self) -> Result<String> {
        git(&self.work, &["push", "-q", "--force", "origin", "HEAD:refs/heads/main"])?;
        Ok(git(&self.work, &["rev-parse", "HEAD"])?.trim().to_owned())
    }

    fn apply(&self, change: &Change) -> Result<()> {
        let parent = |path: &Path| path.parent().map_or(Ok(()), fs::create_dir_all);
        match change {
            Change::Write(path, text) => {
                let path = self.work.join(path);
                parent(&path)?;
                fs::write(path, text)?;
            }
            Change::Remove(path) => {
                let path = self.work.join(path);
                if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
            }
            Change::Rename(from, to) => {
                let to = self.work.join(to);
                parent(&to)?;
                fs::rename(self.work.join(from), to)?;
            }
        }
        Ok(())
    }
}

/// Runs git, ignoring the configuration of the user who runs the tests.
fn git(dir: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Ada Tester");
        command.env(format!("GIT_{role}_EMAIL"), "ada@example.test");
    }
    outcome(&mut command, secs(120))?.ok().with_context(|| format!("git {}", args.join(" ")))
}
