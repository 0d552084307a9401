//! Files and objects that are not Minik8s's own, as they lie beside manifests in repositories: objects of other
//! systems, Helm charts, translations, JSON with comments, kustomizations, Compose files.

use schema::manifest::{ManifestFile, load_file};
use schema::violation::Severity;

use super::{load, rules};

/// `rule line:column: message (help)` of every violation.
fn all(loaded: &ManifestFile) -> Vec<String> {
    let shown = loaded
        .violations
        .iter()
        .map(|one| format!("{} {}:{}: {} ({})", one.rule, one.line, one.column, one.message, one.help));
    shown.collect()
}

/// Asserts that a text has a single error, and returns it.
#[track_caller]
fn error_of(text: &str) -> String {
    let loaded = load(text);
    assert!(loaded.has_errors() && loaded.documents.is_empty(), "{text}");
    let mut errors = all(&loaded);
    assert_eq!(errors.len(), 1, "{text}: {errors:#?}");
    errors.remove(0)
}

// Seen red without `foreign`: five errors about the first, which ask for `apiVersion: minik8s.io/v1`.
#[test]
fn an_object_of_another_system_is_one_error_that_names_its_group() {
    let ignore = "list the file in `.minik8signore`";
    for (api_version, kind, rest, replacement) in [
        (
            "postgresql.cnpg.io/v1",
            "Cluster",
            "metadata: {name: db, namespace: shop}\nspec: {instances: 2, storage: {size: 1Gi}}\n",
            "",
        ),
        (
            "serving.knative.dev/v1",
            "Service",
            "metadata: {name: a}\nspec: {template: {spec: {containers: [{image: b}]}}}\n",
            "use a Function, or ",
        ),
        (
            "argoproj.io/v1alpha1",
            "Workflow",
            "metadata: {generateName: a-}\nspec: {entrypoint: a}\n",
            "write a Workflow of minik8s.io/v1, or ",
        ),
        ("cluster.x-k8s.io/v1beta1", "Cluster", "metadata: {name: a}\nspec: {}\nspec: {}\n", ""),
        ("cert-manager.io/v1", "Certificate", "metadata: {name: a}\nspec: !x {}\n", ""),
        (
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            "metadata: {name: a}\n",
            "use a Dns object for each host, or ",
        ),
        (
            "helm.toolkit.fluxcd.io/v2",
            "HelmRelease",
            "metadata: {name: a}\n",
            "put the rendered manifests into the repository, or ",
        ),
        ("bitnami.com/v1alpha1", "SealedSecret", "metadata: {name: a}\n", "use an age-encrypted file, or "),
    ] {
        let group = api_version.split('/').next().unwrap();
        let wanted =
            format!("unknown-kind 2:7: `{kind}` of {group} is not a kind of Minik8s ({replacement}{ignore})");
        assert_eq!(error_of(&format!("apiVersion: {api_version}\nkind: {kind}\n{rest}")), wanted);
    }
    let two = "apiVersion: a.example/v1\nkind: Pod\n---\napiVersion: b.example/v1\nkind: Pod\n";
    assert_eq!(rules(&load(two)), ["unknown-kind 2:7", "unknown-kind 5:7"]);
    assert!(load(two).broken.is_empty(), "they are no pods");
}

#[test]
fn a_misspelt_group_of_ours_is_a_mistake_in_api_version() {
    let object = |api_version: &str, kind: &str, rest: &str| {
        load(&format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\n{rest}"))
    };
    let pods = "spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}\n";
    for api_version in ["app/v1", "apps/v2", "aps/v1", "apps.k8s.io/v1", "extensions/v2", "minik8s.io/v1"] {
        let loaded = object(api_version, "ReplicaSet", pods);
        assert_eq!(rules(&loaded), ["api-version 1:13"], "{api_version}");
        assert_eq!(loaded.broken[0].reference.to_string(), "ReplicaSet/default/a");
    }
    for api_version in ["minik8s.io/v2", "mini8s.io/v1", "minik8s.oi/v1", "minikube.io/v1"] {
        assert_eq!(
            rules(&object(api_version, "Cluster", "spec: {}\n"))[0],
            "api-version 1:13",
            "{api_version}"
        );
    }
    for older in ["v1", "app/v1", "batch/v1", "minik8s/v1", "/api/v1"] {
        let loaded = object(older, "Function", "spec: {image: \"a:1\"}\n");
        assert_eq!((rules(&loaded), loaded.documents.len()), (vec![], 1), "{older}");
    }
}

#[test]
fn kinds_that_minik8s_does_not_have_name_what_takes_their_place() {
    let rights = "no API of Kubernetes that pods could have rights on";
    for (api_version, kind, help) in [
        ("rbac.authorization.k8s.io/v1", "ClusterRole", rights),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", rights),
        ("rbac.authorization.k8s.io/v1", "Role", rights),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", rights),
        ("networking.k8s.io/v1", "NetworkPolicy", "nothing would enforce the policy"),
        ("networking.k8s.io/v1", "IngressClass", "the gateway of each node"),
        ("v1", "Endpoints", "spec.addresses of the Service"),
        ("discovery.k8s.io/v1", "EndpointSlice", "spec.addresses of the Service"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "would do nothing here"),
        ("apiregistration.k8s.io/v1", "APIService", "no API server to extend"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "`minik8s validate`"),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "`minik8s validate`"),
        ("v1", "LimitRange", "limits of each container"),
        ("v1", "ResourceQuota", "limits of each container"),
        ("policy/v1beta1", "PodSecurityPolicy", "podSecurity of the Cluster object"),
    ] {
        let error =
            error_of(&format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\nrules: []\n"));
        assert!(error.starts_with(&format!("unknown-kind 2:7: unknown kind `{kind}` (")), "{error}");
        assert!(error.contains(help), "{error}");
    }
}

/// Seen red with `appVersion` counted beside `apiVersion`, and with words counted whatever their values.
#[test]
fn files_of_other_programs_are_ignored_without_a_word() {
    for (path, text) in [
        ("chart/Chart.yaml", "apiVersion: v2\nname: web\nversion: 0.1.0\nappVersion: \"1.27\"\n"),
        (
            "chart/Chart.yaml",
            "apiVersion: v2\nname: web\nversion: 0.1.0\nappVersion: v1.27\ntype: application\n",
        ),
        (
            "lang/en.json",
            r#"{"API Version": "API Version", "Metadata": "Metadata", "Spec": "Specification"}"#,
        ),
        ("lang/de.json", r#"{"apiVersion": "Version der API", "metadata": "Metadaten", "spec": "Angaben"}"#),
        (
            "photo.json",
            r#"[{"SourceFile": "a.jpg", "ExifVersion": "0232", "MetaDate": "2020:01:01", "XMPVersion": 1}]"#,
        ),
        ("answer.json", r#"{"apiVersion": "1.0", "metadata": {"count": 3}, "data": []}"#),
        ("schema.json", r#"{"kind": {"type": "string"}, "apiVersion": {"type": "string"}}"#),
    ] {
        let loaded = load_file(path, text.as_bytes());
        assert_eq!((loaded.is_manifest, all(&loaded)), (false, vec![]), "{path}: {text}");
    }
}

#[test]
fn a_manifest_with_a_typo_is_still_one() {
    for text in [
        "kind: Pod\n",
        "kind:\n",
        "kind: 3\n",
        "kindd: Pod\nmetadata: {name: a}\n",
        "knd: Pdo\napiVersion: v1\nmetadata: {name: a}\n",
        "apiVersion: v1\nmetadata:\n",
        "apiVersion:\nspec:\n  containers: []\n",
        "apiVersion: apps/1\nspec: {}\n",
        "APIVersion: V1\nMetadata: {name: a}\n",
        "apiVersoin: v1\nmetdata: {name: a}\ndata: {a: b}\n",
        "kind: [Pod]\nmetadata: {name: a}\nspec: {}\n",
        "kind: {Pod: a}\napiVersion: v1\nmetadata: {name: a}\ndata: {}\n",
        "metadata: {name: a}\nspec: {}\n",
    ] {
        let loaded = load(text);
        assert!(loaded.is_manifest && loaded.has_errors(), "{text}");
    }
}

#[test]
fn json_with_comments_is_another_programs_unless_it_has_a_word_of_a_manifest() {
    let tsconfig = "{\n  // strict\n  \"compilerOptions\": {\"strict\": true,},\n}\n";
    let loaded = load_file("web/tsconfig.json", tsconfig.as_bytes());
    assert!(!loaded.is_manifest && !loaded.has_errors());
    let [found] = all(&loaded).try_into().unwrap();
    assert!(found.starts_with("foreign-file 2:3: "), "{found}");
    assert!(found.ends_with("(list it in .minik8signore)"), "{found}");

    for text in ["{\n  // the pod\n  \"kind\": \"Pod\"\n}\n", "{\"metadata\": {},}", "{\"a\": 1, spec: {}}"] {
        let loaded = load_file("web/pod.json", text.as_bytes());
        assert!(loaded.is_manifest && loaded.has_errors(), "{text}");
        assert!(loaded.violations[0].help.contains(".minik8signore"), "{text}");
    }
    assert_eq!(load_file("a.json", "[".repeat(100).as_bytes()).violations[0].rule, "too-deep");
}

/// A kustomization of `web/prod` with these fields.
fn kustomization(fields: &str) -> ManifestFile {
    load_file("web/prod/kustomization.yaml", fields.as_bytes())
}

#[test]
fn a_kustomization_that_only_lists_files_is_a_note() {
    let head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n";
    for fields in [
        "resources:\n- a.yaml\n- ../base\n",
        "bases: [../base]\nnamespace: \"\"\npatches: []\ncommonLabels: {}\nimages:\n",
        "resources: [a.yaml]\nbuildMetadata: [originAnnotations]\nsortOptions: {order: fifo}\n",
    ] {
        for text in [fields.to_owned(), format!("{head}{fields}")] {
            let loaded = kustomization(&text);
            assert!(!loaded.is_manifest, "{text}");
            let [note] = all(&loaded).try_into().unwrap();
            assert!(note.starts_with("no-effect 1:1: `Kustomization` has no effect here"), "{note}");
        }
    }
    let files =
        kustomization("resources: [a.yaml, ../base/, ./b/../c.yml, ../../.., /d]\n").kustomization.unwrap();
    assert_eq!(files.files, ["web/prod/a.yaml", "web/base", "web/prod/c.yml", "web/prod/d"]);
}

#[test]
fn a_kustomization_that_would_change_manifests_is_one_error() {
    let listed = "resources:\n- a.yaml\n";
    for (fields, named) in [
        ("namespace: shop\n", "`namespace`"),
        ("namePrefix: a-\nnameSuffix: -b\n", "`namePrefix`, `nameSuffix`"),
        ("commonLabels: {a: b}\n", "`commonLabels`"),
        ("images: [{name: a, newTag: b}]\n", "`images`"),
        ("patchesStrategicMerge: [p.yaml]\n", "`patchesStrategicMerge`"),
        ("configMapGenerator: [{name: a, files: [k=c.yaml, d.txt]}]\n", "`configMapGenerator`"),
        ("replicas: [{name: a, count: 2}]\n", "`replicas`"),
        ("components: [../tls]\n", "`components`"),
        ("fieldOfTomorrow: 1\n", "`fieldOfTomorrow`"),
    ] {
        let loaded = kustomization(&format!("{listed}{fields}"));
        assert!(loaded.is_manifest && loaded.documents.is_empty());
        let [error] = all(&loaded).try_into().unwrap();
        assert!(error.starts_with("kustomization 3:1: a kustomization is not rendered, and "), "{error}");
        assert!(error.contains(&format!("and {named} would change")), "{error}");
        assert!(error.contains("`kubectl kustomize`") && error.contains(".minik8signore"), "{error}");
    }
    for remote in ["https://example.org/a.yaml", "github.com/a/b//c?ref=v1", "git@example.org:a?ref=b"] {
        assert_eq!(
            rules(&kustomization(&format!("{listed}- {remote}\n"))),
            ["kustomization 1:1"],
            "{remote}"
        );
    }
    let files = kustomization(
        "resources: [a.yaml]\npatches: [{path: p.yaml}, {patch: 'a: b'}]\nconfigMapGenerator: [{name: a, files: [k=c.yaml, d.txt]}]\n",
    );
    assert_eq!(files.kustomization.unwrap().files, ["web/prod/a.yaml", "web/prod/p.yaml", "web/prod/c.yaml"]);
}

#[test]
fn kustomize_reads_files_by_their_names() {
    let text = "kind: Component\nnamespace: a\n";
    for path in ["a/kustomization.yaml", "kustomization.yml", "a/Kustomization"] {
        assert_eq!(rules(&load_file(path, text.as_bytes())), ["kustomization 2:1"], "{path}");
    }
    let other =
        load_file("a/base.yaml", b"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n");
    assert_eq!(rules(&other), ["unknown-kind 2:7"]);
    // Flux's objects are often in a file of this name.
    let flux = load_file(
        "a/kustomization.yaml",
        b"apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: a}\nspec: {path: ./b}\n",
    );
    assert_eq!(rules(&flux), ["unknown-kind 2:7"]);
    assert!(flux.violations[0].help.contains("--sources"), "{}", flux.violations[0]);
    let pod = load_file("a/kustomization.yaml", super::container("").as_bytes());
    assert_eq!(pod.documents.len(), 1);
}

#[test]
fn a_compose_file_is_named() {
    let compose = |path: &str, text: &str| {
        let loaded = load_file(path, text.as_bytes());
        assert!(!loaded.is_manifest, "{path}: {text}");
        assert!(loaded.violations.iter().all(|one| one.severity == Severity::Note));
        all(&loaded).into_iter().map(|one| one.split(": ").next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let note = ["no-effect 2:1"];
    for (path, text) in [
        (
            "compose.yaml",
            "x-a: &a {restart: always}\nservices:\n  web: {image: nginx, <<: *a}\nvolumes: {data: }\n",
        ),
        (
            "deploy/docker-compose.prod.yml",
            "version: '3'\nservices:\n  web:\n    build: .\n    ports: ['80:80']\n",
        ),
        ("docker-compose.override.yml", "name: a\nservices:\n  web: {ports: [\"80:80\"]}\n"),
        ("stack.yaml", "networks: {}\nservices: {web: {image: nginx}, db: {extends: a}}\n"),
    ] {
        assert_eq!(compose(path, text), note, "{path}");
    }
    for (path, text) in [
        ("services.yaml", "services:\n  _defaults: {autowire: true}\n"),
        ("values.yaml", "services: {web: {image: nginx}}\nreplicas: 2\n"),
        (".gitlab-ci.yml", "services:\n- image: docker\n"),
        ("compose.yaml", "services: {}\n"),
        ("compose.yaml", "include: [a.yaml]\n"),
    ] {
        assert_eq!(compose(path, text), Vec::<String>::new(), "{path}");
    }
}

/// The text of the annotation `steps`, between its key and the next field.
fn annotated(steps: &str) -> ManifestFile {
    load(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: hooks\n  annotations:\n    steps: {steps}\n    more: §\ndata: {{}}\n"
    ))
}

// Seen red without moving the line.
#[test]
fn a_quoted_text_may_end_at_the_column_of_its_key() {
    for (steps, wanted) in [
        ("'[\n      {\"run\": \"migrate\"}\n    ]'", "[ {\"run\": \"migrate\"} ]"),
        ("'[\n      1\n  ]'", "[ 1 ]"),
        ("'[\n      1\n\n]'", "[ 1\n]"),
        ("\"{\n      a\n    }\"", "{ a }"),
        ("'a\n    '", "a "),
        ("\n      '[\n    ]'", "[ ]"),
    ] {
        let loaded = annotated(steps);
        assert_eq!((rules(&loaded), loaded.documents.len()), (vec![], 1), "{steps}");
        let annotations = &loaded.documents[0].object.metadata.annotations;
        assert_eq!((annotations["steps"].as_str(), annotations["more"].as_str()), (wanted, "§"), "{steps}");
    }
}

#[test]
fn of_a_quoted_text_that_goes_on_too_far_left_the_line_is_named() {
    for (steps, place, help) in [
        ("'[\n    1,\n      2]'", "yaml-syntax 6:12", "indent line 7 by 1 more"),
        ("'[\n      1,\n  2]'", "yaml-syntax 6:12", "indent line 8 by 3 more"),
        ("'forgotten", "yaml-syntax 6:12", "indent line 7 by 1 more, or end the quoted text before it"),
        ("'[\n    ]\n    1'", "yaml-syntax 6:12", "indent line 8 by 1 more"),
    ] {
        let loaded = annotated(steps);
        assert_eq!(rules(&loaded), [place], "{steps}");
        assert!(loaded.violations[0].help.starts_with(help), "{steps}: {}", loaded.violations[0]);
    }
}

#[test]
fn typed_lists_are_opened_and_their_items_need_not_say_what_they_are() {
    let pod = "metadata: {name: a}, spec: {containers: [{name: m, image: i}]}";
    let service = "metadata: {name: a}, spec: {clusterIP: None, selector: {a: b}}";
    for (head, item, wanted) in [
        ("apiVersion: v1\nkind: PodList\n", pod.to_owned(), "Pod/default/a"),
        (
            "apiVersion: v1\nkind: ServiceList\nmetadata: {resourceVersion: \"\"}\n",
            service.to_owned(),
            "Service/default/a",
        ),
        (
            "apiVersion: v1\nkind: ConfigMapList\n",
            "metadata: {name: a}, data: {a: b}".to_owned(),
            "ConfigMap/default/a",
        ),
        ("apiVersion: v1\nkind: PodList\n", format!("apiVersion: v1, kind: Pod, {pod}"), "Pod/default/a"),
        ("apiVersion: v1\nkind: List\n", format!("apiVersion: v1, kind: Pod, {pod}"), "Pod/default/a"),
    ] {
        let loaded = load(&format!("{head}items:\n- {{{item}}}\n"));
        assert_eq!(rules(&loaded), Vec::<String>::new(), "{head}{item}");
        assert_eq!(loaded.documents[0].reference.to_string(), wanted);
    }
    let roles = "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleList\nitems:\n- metadata: {name: a}\n  rules: []\n";
    assert!(error_of(roles).starts_with("unknown-kind 4:3: unknown kind `Role` ("), "{roles}");
    let clusters = "apiVersion: postgresql.cnpg.io/v1\nkind: ClusterList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n";
    assert_eq!(rules(&load(clusters)), ["unknown-kind 4:3", "unknown-kind 5:3"]);
    // Not opened: what is in it is unknown.
    for text in ["kind: PodList\nitems: [a]\n", "kind: PodList\n", "kind: PodList\nitems: []\n"] {
        assert!(load(text).has_errors(), "{text}");
    }
}
