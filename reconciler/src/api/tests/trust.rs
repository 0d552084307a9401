//! A machine and a person over HTTP, from a token to the list.

use schema::trust::{Certificate, JoinToken};

use super::*;
use crate::trust::admission_testing::{admission, signing_request};

impl Api {
    /// Serves the API of a reconciler that admits others.
    async fn admitting() -> Self {
        let (store, snapshot) = (Arc::new(MemoryStore::new()), SnapshotReader::fixed(with_web()));
        let admission = Some(admission(&store, snapshot.clone()));
        let deps = ApiDeps { admission, ..deps(snapshot, &store) };
        Self::with("n1", store, deps).await
    }

    async fn send(&self, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("http://{}{path}", self.address);
        let answer = reqwest::Client::new().post(url).json(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

#[tokio::test]
async fn a_machine_joins_with_a_token_and_is_listed() {
    let api = Api::admitting().await;
    let (status, made) = api.send("/v1/tokens", &json!({"identity": "node-n7"})).await;
    assert_eq!(status, 200, "{made}");
    assert!(made["expiresAt"].is_string() && made["reconcilers"][0].is_string(), "{made}");
    let token: JoinToken = made["token"].as_str().unwrap().parse().unwrap();
    let (csr, key) = signing_request("node-n7");
    let request = json!({
        "token": token.id, "secret": token.secret, "identity": "node-n7", "signingRequest": csr
    });
    let (status, answer) = api.send("/v1/join", &request).await;
    assert_eq!(status, 200, "{answer}");
    let certificate = Certificate::from_pem(answer["certificate"].as_str().unwrap()).unwrap();
    assert_eq!(certificate.identity().unwrap().to_string(), "node-n7");
    let (_, listed) = api.get("/v1/identities").await;
    let item = &listed["items"][0];
    assert_eq!((&item["identity"], &item["key"]), (&json!("node-n7"), &json!(key)), "{listed}");

    let renewal = json!({"certificate": answer["certificate"], "signingRequest": csr});
    let (status, renewed) = api.send("/v1/renew", &renewal).await;
    assert_eq!(status, 200, "{renewed}");

    let (status, again) = api.send("/v1/join", &request).await;
    let error = again["error"].as_str().unwrap();
    assert!(status == 401 && error.starts_with("the token was used already at 2"), "{status} {again}");
    assert!(again["help"].as_str().unwrap().contains("minik8s token create"), "{again}");
}

#[tokio::test]
async fn what_is_refused_has_its_status_and_says_what_to_do() {
    let api = Api::admitting().await;
    let (csr, _) = signing_request("node-n7");
    let join = |token: &str, secret: &str| {
        let identity = "node-n7";
        json!({"token": token, "secret": secret, "identity": identity, "signingRequest": csr})
    };
    let large = json!({"name": "ada", "signingRequest": "a".repeat(65 * 1024)});
    let mut texts = Vec::new();
    for (path, body, status) in [
        ("/v1/join", join("0a0b0c0d0e0f", "secret"), 401),
        ("/v1/join", join("../trust", "secret"), 401),
        ("/v1/join", json!({"token": "0a0b0c0d0e0f"}), 400),
        ("/v1/renew", json!({"certificate": "", "signingRequest": csr}), 400),
        ("/v1/tokens", json!({"identity": "user-ada"}), 400),
        ("/v1/users", json!({"name": "ADA", "signingRequest": csr}), 400),
        ("/v1/users", large, 413),
        ("/v1/identities/user-ada/remove", json!({}), 404),
        ("/v1/identities/x/remove", json!({}), 400),
        ("/v1/leave", json!({}), 400),
    ] {
        let (answered, answer) = api.send(path, &body).await;
        assert_eq!(answered, status, "{path}: {answer}");
        assert!(answer["help"].as_str().is_some_and(|help| !help.is_empty()), "{answer}");
        texts.push(answer);
    }
    assert_eq!(texts[0], texts[1], "a wrong id and a wrong secret answer alike");
}

#[tokio::test]
async fn a_person_is_added_and_listed() {
    let api = Api::admitting().await;
    let (csr, _) = signing_request("user-ada");
    let user = json!({"name": "ada", "signingRequest": csr, "lifetimeSeconds": 3600});
    let (status, answer) = api.send("/v1/users", &user).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(api.get("/v1/identities").await.1["items"][0]["identity"], "user-ada");
}
