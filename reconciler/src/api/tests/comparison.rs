//! Pages of commits and objects with what changed; the comparisons themselves are scripted.

use schema::kinds::Kind;
use schema::meta::ObjectRef;

use super::*;

/// Serves revisions 1 and 2 of source `main`, the second of which set the pod `web`.
async fn api(
    compare: impl Fn(&CommitPair) -> Result<Comparison, ComparisonError> + Send + Sync + 'static,
) -> Api {
    Api::comparing("n1", SnapshotReader::fixed(with_web()), Comparisons::new(Arc::new(compare))).await
}

async fn html(api: &Api, path: &str) -> String {
    let answer = reqwest::get(format!("http://{}{path}", api.address)).await.unwrap();
    let (status, html) = (answer.status(), answer.text().await.unwrap());
    assert_eq!(status, 200, "{path}: {html}");
    html
}

/// The content of a part.
fn part<'a>(html: &'a str, id: &str) -> &'a str {
    let begin = format!("<section id=\"{id}\">");
    let rest = html.split_once(&begin).unwrap_or_else(|| panic!("no part {id}: {html}")).1;
    rest.split_once("</section>").unwrap().0
}

fn changed(name: &str, from: &str, to: &str) -> ObjectChange {
    let field = FieldDifference {
        path: "spec.containers[0].image".to_owned(),
        line: 8,
        is_hidden: false,
        from: from.to_owned(),
        to: to.to_owned(),
    };
    ObjectChange {
        action: "replace".to_owned(),
        object: ObjectRef { kind: Kind::Pod, namespace: "default".to_owned(), name: name.to_owned() },
        place: "apps/web.yaml:3".to_owned(),
        reason: "spec.containers[0].image changed".to_owned(),
        fields: vec![field],
        more_fields: 0,
    }
}

fn comparison(pair: &CommitPair, changes: Vec<ObjectChange>) -> Comparison {
    Comparison {
        base: pair.base.clone(),
        headline: "2 to replace".to_owned(),
        changes,
        command: "minik8s plan --base A --head B --in-place".to_owned(),
        ..Comparison::default()
    }
}

#[tokio::test]
async fn a_commit_shows_all_changes_since_the_one_before_and_an_object_its_own() {
    let api = api(|pair| {
        assert_eq!(pair.source, "main");
        match (pair.base.as_deref(), pair.head.as_str()) {
            (Some(C1), C2) => {
                Ok(comparison(pair, vec![changed("web", "one", "two"), changed("other", "three", "four")]))
            }
            (None, C1) => Ok(comparison(pair, Vec::new())),
            other => panic!("{other:?} are compared"),
        }
    })
    .await;
    let html_of_commit = html(&api, "/history/main/2").await;
    let plan = part(&html_of_commit, "plan");
    for text in ["compared with 1111111", "/object/Pod/default/web", "spec.containers[0].image", "line 8"] {
        assert!(plan.contains(text), "no {text} in {plan}");
    }
    for value in [">one<", ">two<", ">three<", ">four<"] {
        assert!(plan.contains(value), "no {value} in {plan}");
    }
    assert!(!plan.contains("minik8s plan"), "all of it is shown: {plan}");
    let first = html(&api, "/history/main/1").await;
    assert!(part(&first, "plan").contains("compared with nothing"), "{first}");
    let html_of_object = html(&api, "/object/Pod/default/web").await;
    let diff = part(&html_of_object, "diff");
    for text in ["/history/main/2", "2222222", ">one<", ">two<"] {
        assert!(diff.contains(text), "no {text} in {diff}");
    }
    assert!(!diff.contains(">three<"), "{diff}");
}

#[tokio::test]
async fn hidden_values_are_not_shown_and_hostile_text_stays_text() {
    let hostile = "<img src=x onerror=alert(1)>\"'\u{202e}\u{1b}[31m";
    let api = api(move |pair| {
        let mut change = changed("web", hostile, "two");
        change.reason = hostile.to_owned();
        change.place = hostile.to_owned();
        change.fields[0].path = hostile.to_owned();
        change.fields.push(FieldDifference { is_hidden: true, ..change.fields[0].clone() });
        let line = |is_warning| ComparisonLine { is_warning, text: hostile.to_owned() };
        let mut found = comparison(pair, vec![change]);
        found.lines = vec![line(true), line(false)];
        found.headline = hostile.to_owned();
        Ok(found)
    })
    .await;
    for (path, id) in [("/history/main/2", "plan"), ("/object/Pod/default/web", "diff")] {
        let html = html(&api, path).await;
        let part = part(&html, id);
        assert!(!part.contains("<img") && !part.contains(['\u{202e}', '\u{1b}']), "{path}: {part}");
        assert!(part.contains("&#60;img") || part.contains("&lt;img"), "{path}: {part}");
        assert_eq!(part.matches("changed, not shown").count(), 1, "{path}: {part}");
        assert_eq!(part.matches("<td class=\"mono before\">").count(), 1, "{path}: {part}");
    }
}

#[tokio::test]
async fn without_a_comparison_a_sentence_names_the_command_that_shows_the_same() {
    let api = api(|pair| match pair.base {
        Some(_) => Err(ComparisonError::Missing("commit 222222222222".to_owned())),
        None => Err(ComparisonError::NoMirror),
    })
    .await;
    for (path, id) in [("/history/main/2", "plan"), ("/object/Pod/default/web", "diff")] {
        let html = html(&api, path).await;
        let part = part(&html, id);
        assert!(part.contains("does not have commit 222222222222"), "{path}: {part}");
        assert!(part.contains("git diff 111111111111 222222222222"), "{path}: {part}");
    }
    let first = html(&api, "/history/main/1").await;
    let plan = part(&first, "plan");
    assert!(plan.contains("has no mirror") && plan.contains("git show 111111111111"), "{plan}");
}

#[tokio::test]
async fn an_object_whose_commit_is_forgotten_has_an_empty_part() {
    let mut snapshot = with_web();
    put_object(&mut snapshot, "web", C3);
    let comparisons =
        Comparisons::new(Arc::new(|pair: &CommitPair| panic!("{pair:?} is not of the history")));
    let api = Api::comparing("n1", SnapshotReader::fixed(snapshot), comparisons).await;
    let html = html(&api, "/object/Pod/default/web").await;
    assert_eq!(part(&html, "diff").trim(), "");
}

#[tokio::test]
async fn many_changes_are_cut_and_the_command_prints_all() {
    let api = api(|pair| {
        let many = (0..1_000).map(|number| changed(&format!("web-{number}"), "<", ">"));
        let line = ComparisonLine { is_warning: true, text: "<".repeat(500) };
        let mut found = comparison(pair, many.collect());
        found.lines = vec![line; 50];
        found.left_out = 500;
        Ok(found)
    })
    .await;
    let html = html(&api, "/history/main/2").await;
    let plan = part(&html, "plan");
    assert!(plan.len() <= 64 * 1024, "{}", plan.len());
    let shown = plan.matches("/object/Pod/default/web-").count();
    assert!(shown > 10, "{shown}");
    assert!(plan.contains(&format!("{} further changes", 1_500 - shown)), "{shown}: {plan}");
    assert!(plan.contains("minik8s plan --base A --head B --in-place"), "{plan}");
}
