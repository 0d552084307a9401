//! The script that reviews pull requests in CI, against a bare repository and a forge's API: one
//! comment, kept up to date, and a check that fails on errors but not on changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::manifests::sleeper;
use harness::{Change, Forge, ForgeKind, GitRepo, Outcome, Result, ensure, minik8s_binary, outcome, secs};

const TOKEN: &str = "canary-token-5b1e";
const MARKER: &str = "<!-- minik8s-plan -->";
const KINDS: [ForgeKind; 3] = [ForgeKind::GitHub, ForgeKind::GitLab, ForgeKind::Gitea];

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("minik8s-ci-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A repository with one pod on `main`, known to the clone as `origin/main`.
fn repository(folder: &Folder) -> Result<GitRepo> {
    let repo = GitRepo::create(&folder.0)?;
    repo.push(&[Change::write("apps/web.yaml", sleeper("web"))], "Open")?;
    Ok(repo)
}

fn template(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/ci").join(name)
}

/// Commits on an unmerged branch of the clone.
fn propose(repo: &GitRepo, path: &str, text: &str) -> Result<()> {
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(repo.work()).args(["-c", "user.name=Ada", "-c", "user.email=a@b"]);
        // Level 1, because one of the tests hashes and packs a gigabyte.
        git.args(["-c", "core.compression=1"]).args(args);
        outcome(&mut git, secs(300))?.ok()
    };
    git(&["checkout", "-q", "-B", "proposal"])?;
    std::fs::write(repo.work().join(path), text)?;
    git(&["add", "-A"])?;
    git(&["commit", "-q", "-m", "Propose"])?;
    Ok(())
}

/// Runs the script as the forge's CI does.
fn review(repo: &GitRepo, kind: ForgeKind, forge: Option<(&Forge, Option<&str>)>) -> Result<Outcome> {
    review_within("", repo, kind, forge)
}

/// Like `review`, after shell commands that set limits.
fn review_within(
    limits: &str,
    repo: &GitRepo,
    kind: ForgeKind,
    forge: Option<(&Forge, Option<&str>)>,
) -> Result<Outcome> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}\nexec sh \"$0\"")]).arg(template("minik8s-review.sh"));
    command.current_dir(repo.work()).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("MINIK8S_BIN", minik8s_binary());
    let api = forge.map(|(forge, _)| forge.api()).unwrap_or_default();
    match kind {
        ForgeKind::GitHub => command
            .env("GITHUB_ACTIONS", "true")
            .env("GITHUB_API_URL", api)
            .env("GITHUB_REPOSITORY", "ada/fleet")
            .env("GITHUB_REF", "refs/pull/7/merge")
            .env("GITHUB_BASE_REF", "main")
            .env("GITHUB_STEP_SUMMARY", repo.work().with_file_name("summary.md")),
        ForgeKind::GitLab => command
            .env("GITLAB_CI", "true")
            .env("CI_API_V4_URL", api)
            .env("CI_PROJECT_ID", "3")
            .env("CI_MERGE_REQUEST_IID", "7")
            .env("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "main"),
        ForgeKind::Gitea => command
            .env("GITEA_ACTIONS", "true")
            .env("GITHUB_ACTIONS", "true")
            .env("GITHUB_API_URL", api)
            .env("GITHUB_REPOSITORY", "ada/fleet")
            .env("GITHUB_REF", "refs/pull/7/head")
            .env("GITHUB_BASE_REF", "main"),
    };
    if let Some((_, Some(token))) = forge {
        command.env("MINIK8S_TOKEN", token);
    }
    outcome(&mut command, secs(60))
}

#[test]
fn one_comment_is_written_and_kept_up_to_date() -> Result<()> {
    for kind in KINDS {
        let folder = Folder::new(&format!("sticky-{kind:?}"))?;
        let repo = repository(&folder)?;
        let forge = Forge::serve(kind, TOKEN, true)?;
        // Enough foreign comments to put ours on the second page.
        for number in 0..120 {
            forge.say(&format!("comment {number}, with {MARKER} in its middle"));
        }
        propose(&repo, "apps/two.yaml", &sleeper("two"))?;
        let ran = review(&repo, kind, Some((&forge, Some(TOKEN))))?;
        ensure!(ran.code == 0, "{kind:?}: {ran:?}");
        let first = forge.comments();
        ensure!(first.len() == 121, "{kind:?}: {} comments", first.len());
        ensure!(first[120].body.starts_with(MARKER), "{:?}", first[120]);
        ensure!(first[120].body.contains("Pod default/two"), "{:?}", first[120]);

        propose(&repo, "apps/three.yaml", &sleeper("three").to_string())?;
        let ran = review(&repo, kind, Some((&forge, Some(TOKEN))))?;
        ensure!(ran.code == 0, "{kind:?}: {ran:?}");
        let second = forge.comments();
        ensure!(second.len() == 121 && second[..120] == first[..120], "{kind:?}: another comment changed");
        ensure!(
            second[120].id == first[120].id && second[120].body.contains("Pod default/three"),
            "{kind:?}"
        );
        ensure!(!format!("{ran:?}").contains(TOKEN), "the token is printed");
    }
    Ok(())
}

#[test]
fn a_comment_that_somebody_else_began_with_the_marker_is_left_alone() -> Result<()> {
    for kind in KINDS {
        let folder = Folder::new(&format!("hijack-{kind:?}"))?;
        let repo = repository(&folder)?;
        let forge = Forge::serve(kind, TOKEN, true)?;
        let forged = format!("{MARKER}\n### Minik8s plan: no changes");
        forge.say(&forged);
        propose(&repo, "apps/two.yaml", &sleeper("two"))?;
        // The second time our comment exists, and a newer one of the stranger.
        for expected in [2, 3] {
            let ran = review(&repo, kind, Some((&forge, Some(TOKEN))))?;
            ensure!(ran.code == 0, "{kind:?}: {ran:?}");
            let comments = forge.comments();
            ensure!(comments.len() == expected, "{kind:?}: {comments:?}");
            for comment in &comments {
                let ours = comment.author == forge.account();
                ensure!(ours == comment.body.contains("Pod default/two"), "{kind:?}: {comment:?}");
                ensure!(ours || comment.body == forged, "{kind:?}: {comment:?}");
            }
            forge.say(&forged);
        }
    }
    Ok(())
}

#[test]
fn a_comment_that_can_not_be_changed_is_followed_by_a_new_one() -> Result<()> {
    for kind in KINDS {
        let folder = Folder::new(&format!("frozen-{kind:?}"))?;
        let repo = repository(&folder)?;
        let forge = Forge::serve(kind, TOKEN, true)?;
        propose(&repo, "apps/two.yaml", &sleeper("two"))?;
        ensure!(review(&repo, kind, Some((&forge, Some(TOKEN))))?.code == 0, "{kind:?}");
        forge.freeze();
        propose(&repo, "apps/three.yaml", &sleeper("three").to_string())?;
        let ran = review(&repo, kind, Some((&forge, Some(TOKEN))))?;
        ensure!(ran.code == 0, "{kind:?}: {ran:?}");
        let comments = forge.comments();
        ensure!(
            comments.len() == 2 && comments[1].body.contains("Pod default/three"),
            "{kind:?}: {comments:?}"
        );
    }
    Ok(())
}

#[test]
fn the_job_summary_holds_the_plan_and_errors_are_annotations() -> Result<()> {
    let folder = Folder::new("summary")?;
    let repo = repository(&folder)?;
    let forge = Forge::serve(ForgeKind::GitHub, TOKEN, true)?;
    propose(
        &repo,
        "apps/two.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: two}\nspec: {contaners: []}\n",
    )?;
    let ran = review(&repo, ForgeKind::GitHub, Some((&forge, Some(TOKEN))))?;
    ensure!(ran.code == 1, "errors fail the check: {ran:?}");
    ensure!(ran.stdout.contains("::error file=apps/two.yaml,line=4"), "{ran:?}");
    let summary = std::fs::read_to_string(repo.work().with_file_name("summary.md"))?;
    ensure!(summary.contains("can't be applied"), "{summary}");
    ensure!(forge.comments().len() == 1, "the comment says it, too");
    Ok(())
}

#[test]
fn without_a_token_that_may_write_the_plan_is_printed() -> Result<()> {
    for kind in KINDS {
        let folder = Folder::new(&format!("fork-{kind:?}"))?;
        let repo = repository(&folder)?;
        propose(&repo, "apps/two.yaml", &sleeper("two"))?;
        let read_only = Forge::serve(kind, TOKEN, false)?;
        for token in [None, Some(TOKEN)] {
            let ran = review(&repo, kind, Some((&read_only, token)))?;
            ensure!(ran.code == 0, "{kind:?} {token:?}: {ran:?}");
            ensure!(ran.stdout.contains("+ create Pod default/two"), "{kind:?}: {ran:?}");
            ensure!(read_only.comments().is_empty());
        }
    }
    Ok(())
}

/// Files with which a fork could make a review endless, or make it read secrets.
fn hostile(apps: &Path, canary: &Path) -> Result<()> {
    let file = |name: &str, text: String| std::fs::write(apps.join(name), text);
    // A gigabyte of zeros that takes no space on disk.
    std::fs::File::create(apps.join("huge.yaml"))?.set_len(1 << 30)?;
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let inner = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{inner}]\n");
    }
    file("bomb.yaml", format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: bomb}}\n{bomb}"))?;
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: deep}\nspec: ";
    file("deep.yaml", format!("{pod}{}\n", "[".repeat(500_000)))?;
    file("deep.json", format!("{{\"kind\": \"Pod\", \"spec\": {}", "{\"a\":".repeat(150_000)))?;
    file("documents.yaml", "---\nkind: Pod\n".repeat(50_000))?;
    file("anchors.yaml", format!("{pod}{}\n", "&a ".repeat(300_000)))?;
    for (name, target) in
        [("link.yaml", canary), ("zero.yaml", Path::new("/dev/zero")), ("loop", Path::new("."))]
    {
        std::os::unix::fs::symlink(target, apps.join(name))?;
    }
    Ok(())
}

#[test]
fn a_hostile_proposal_costs_little_and_reads_nothing_outside_the_repository() -> Result<()> {
    let folder = Folder::new("hostile")?;
    let repo = repository(&folder)?;
    let canary = folder.0.join("canary.yaml");
    std::fs::write(&canary, "apiVersion: v1\nkind: Pod\nmetadata: {name: canary-outside}\n")?;
    hostile(&repo.work().join("apps"), &canary)?;
    propose(&repo, "apps/two.yaml", &sleeper("two"))?;
    let forge = Forge::serve(ForgeKind::GitLab, TOKEN, true)?;
    // CPU seconds, so that a busy machine fails nothing, and KiB of memory, less than the
    // size of the huge file; both per process.
    let limits = "ulimit -t 5 && ulimit -v 1000000";
    for round in 1..=2 {
        let ran = review_within(limits, &repo, ForgeKind::GitLab, Some((&forge, Some(TOKEN))))?;
        // The job's log quotes every broken file, so check its end.
        let log = format!("{}{}", ran.stdout, ran.stderr);
        let end: String = log.chars().rev().take(2000).collect::<Vec<_>>().into_iter().rev().collect();
        ensure!(ran.code == 1, "round {round}: code {}: {end}", ran.code);
        ensure!(log.contains("the manifests have errors"), "round {round}: {end}");
        let comments = forge.comments();
        ensure!(comments.len() == 1, "round {round}: {} comments", comments.len());
        let comment = &comments[0].body;
        ensure!(comment.contains("Pod default/two"), "round {round}: {comment}");
        ensure!(comment.contains("apps/bomb.yaml"), "round {round}: {comment}");
        ensure!(!log.contains("canary-outside") && !comment.contains("canary-outside"), "a link is followed");
    }
    Ok(())
}

// Seen red with a script that exited without any word in the comment.
#[test]
fn a_plan_that_can_not_be_made_takes_the_place_of_the_one_before() -> Result<()> {
    for kind in KINDS {
        let folder = Folder::new(&format!("no-plan-{kind:?}"))?;
        let repo = repository(&folder)?;
        let forge = Forge::serve(kind, TOKEN, true)?;
        propose(&repo, "apps/web.yaml", &sleeper("web").replace("name: web", "name: web # ours"))?;
        let ran = review(&repo, kind, Some((&forge, Some(TOKEN))))?;
        ensure!(ran.code == 0 && forge.comments().len() == 1, "{kind:?}: {ran:?}");
        // Main changes the very same line meanwhile.
        let git =
            |args: &[&str]| outcome(Command::new("git").current_dir(repo.work()).args(args), secs(60))?.ok();
        git(&["checkout", "-q", "main"])?;
        repo.push(
            &[Change::write("apps/web.yaml", sleeper("web").replace("name: web", "name: web # theirs"))],
            "Theirs",
        )?;
        git(&["checkout", "-q", "proposal"])?;
        let ran = review(&repo, kind, Some((&forge, Some(TOKEN))))?;
        ensure!(ran.code == 1 && ran.stderr.contains("there is no plan"), "{kind:?}: {ran:?}");
        let comments = forge.comments();
        ensure!(comments.len() == 1, "{kind:?}: {} comments", comments.len());
        let body = &comments[0].body;
        ensure!(body.starts_with(MARKER) && body.contains("both change apps/web.yaml"), "{kind:?}: {body}");
    }
    Ok(())
}

// Seen red without `unheeded`.
#[test]
fn a_file_whose_name_is_a_command_to_the_runner_is_none() -> Result<()> {
    for kind in [ForgeKind::GitHub, ForgeKind::Gitea] {
        let folder = Folder::new(&format!("command-{kind:?}"))?;
        let repo = repository(&folder)?;
        propose(&repo, "::warning title=x::root.yaml", "kind: Pod\n")?;
        let ran = review(&repo, kind, None)?;
        ensure!(ran.code == 1, "{kind:?}: {ran:?}");
        let mut stopped = None;
        for line in ran.stdout.lines().chain(ran.stderr.lines()) {
            let line = line.trim_start();
            match (&stopped, line.strip_prefix("::stop-commands::")) {
                (None, Some(word)) => stopped = Some(format!("::{word}::")),
                (Some(word), _) if line == word => stopped = None,
                (Some(_), _) => {}
                (None, None) => ensure!(!line.starts_with("::warning title=x"), "{kind:?}: {line}"),
            }
        }
        ensure!(
            stopped.is_none() && ran.stdout.contains("::warning title=x::root.yaml"),
            "{kind:?}: {ran:?}"
        );
    }
    Ok(())
}

// Seen red with links followed.
#[test]
fn a_folder_that_a_proposal_made_a_link_is_not_followed() -> Result<()> {
    let folder = Folder::new("linked")?;
    let repo = repository(&folder)?;
    let outside = folder.0.join("outside");
    std::fs::create_dir_all(&outside)?;
    std::fs::write(outside.join("conf.json"), "{\"canary-outside\": 4711}")?;
    std::fs::remove_dir_all(repo.work().join("apps"))?;
    std::os::unix::fs::symlink(&outside, repo.work().join("apps"))?;
    propose(&repo, "more.yaml", &sleeper("more"))?;
    let ran = review_within("export MINIK8S_PATH=apps", &repo, ForgeKind::GitHub, None)?;
    let log = format!("{}{}", ran.stdout, ran.stderr);
    ensure!(ran.code == 1 && log.contains("symbolic link"), "{ran:?}");
    ensure!(!log.contains("4711") && !log.contains("canary"), "{log}");
    Ok(())
}

#[test]
fn two_runs_for_one_proposal_never_write_at_once() -> Result<()> {
    let both = ["concurrency:", "group: minik8s-${{ github.event.pull_request.number }}"];
    let of_each: [(&str, &[&str]); 3] = [
        ("github.yml", &both),
        ("gitea.yml", &both),
        ("gitlab-ci.yml", &["resource_group: minik8s-$CI_MERGE_REQUEST_IID"]),
    ];
    for (name, lines) in of_each {
        let text = std::fs::read_to_string(template(name))?;
        for line in lines {
            ensure!(text.lines().any(|found| found.trim() == *line), "{name} has no {line}");
        }
    }
    Ok(())
}

#[test]
fn a_wrong_token_fails_with_one_clear_line() -> Result<()> {
    for kind in KINDS {
        let folder = Folder::new(&format!("token-{kind:?}"))?;
        let repo = repository(&folder)?;
        let forge = Forge::serve(kind, TOKEN, true)?;
        propose(&repo, "apps/two.yaml", &sleeper("two"))?;
        let ran = review(&repo, kind, Some((&forge, Some("wrong"))))?;
        ensure!(ran.code == 1, "{kind:?}: {ran:?}");
        ensure!(ran.stderr.contains("refused the token (HTTP 401)"), "{kind:?}: {ran:?}");
        ensure!(
            forge.asked().len() == 1 && forge.asked()[0].ends_with("/user") && forge.comments().is_empty(),
            "{:?}",
            forge.asked()
        );
    }
    Ok(())
}
