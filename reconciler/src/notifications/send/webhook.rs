//! Requests of webhooks and chats, as values: a generic webhook signed as Standard Webhooks specify, Slack's incoming
//! webhooks, and Matrix.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use reqwest::{Method, Url};
use schema::kinds::cluster::{NotificationWebhook, PLACEHOLDERS, fill_template};
use serde_json::{Map, Value as Json, json};
use sha2::Sha256;

use super::exchange::{Delivery, DeliveryError, Request, below};

/// Marks a key that is written in Base64.
const KEY_PREFIX: &str = "whsec_";

/// Request of a generic webhook, sent at `now` by the cluster of this name. Each repetition has the same id, and a time
/// of its own.
pub(super) fn webhook(
    webhook: &NotificationWebhook,
    url: Url,
    key: Option<&str>,
    (delivery, cluster): (&Delivery, &str),
    now: Timestamp,
) -> Result<Request, DeliveryError> {
    let body = match &webhook.template {
        Some(template) => fill_template(template, &|name: &str| value(delivery, cluster, name))
            .map_err(|why| DeliveryError::new(format!("its template {why}")))?,
        None => {
            let field =
                |name: &&str| Some(((*name).to_owned(), Json::String(value(delivery, cluster, name)?)));
            Json::Object(PLACEHOLDERS.iter().filter_map(field).collect::<Map<String, Json>>()).to_string()
        }
    };
    let now = now.as_second();
    let mut headers = vec![
        ("content-type", "application/json".to_owned()),
        ("webhook-id", delivery.id.clone()),
        ("webhook-timestamp", now.to_string()),
    ];
    if let Some(key) = key {
        headers.push(("webhook-signature", signature(&key_bytes(key)?, &delivery.id, now, &body)));
    }
    Ok(Request { method: Method::POST, url, headers, body: Some(body.into_bytes()) })
}

/// Returns the value of a placeholder.
fn value(delivery: &Delivery, cluster: &str, name: &str) -> Option<String> {
    let message = &delivery.message;
    let value: &str = match name {
        "title" => &message.title,
        "text" => &message.text,
        "state" => message.state.as_str(),
        "event" => message.event.as_str(),
        "subject" => &delivery.subject,
        "source" => message.source.as_deref().unwrap_or_default(),
        "commit" => message.commit.as_deref().unwrap_or_default(),
        "link" => delivery.link.as_deref().unwrap_or_default(),
        "id" => &delivery.id,
        "cluster" => cluster,
        _ => return None,
    };
    Some(value.to_owned())
}

/// Returns the bytes of a key: Base64 after `whsec_`, else the text itself.
fn key_bytes(key: &str) -> Result<Vec<u8>, DeliveryError> {
    match key.trim().strip_prefix(KEY_PREFIX) {
        Some(encoded) => BASE64
            .decode(encoded)
            .map_err(|_| DeliveryError::new(format!("its `key` is not Base64 after {KEY_PREFIX}"))),
        None => Ok(key.trim().as_bytes().to_vec()),
    }
}

fn signature(key: &[u8], id: &str, timestamp: i64, body: &str) -> String {
    let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    let mac = mac.chain_update(format!("{id}.{timestamp}.")).chain_update(body);
    format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
}

/// Request to an incoming webhook of Slack.
pub(super) fn slack(url: Url, delivery: &Delivery) -> Request {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // Nothing in the text may notify anyone: Slack has markup for that, other chats read `@channel`, which a space of no
    // width breaks.
    let quiet = |text: &str| escaped(text).replace('@', "@\u{200b}");
    let Delivery { message, link, .. } = delivery;
    let link = link.as_deref().map(|link| format!("<{}>", escaped(link).replace('|', "%7C")));
    let text = joined([&quiet(&message.title), &quiet(&message.text), &link.unwrap_or_default()]);
    // In Slack, addresses in the text do not become links, nor pictures.
    let body = json!({
        "text": text,
        "link_names": false,
        "parse": "none",
        "unfurl_links": false,
        "unfurl_media": false,
    });
    Request::json(Method::POST, url, &body)
}

/// Request that sends a message to a Matrix room. The server takes a repetition for the same message by its id.
pub(super) fn matrix(homeserver: &Url, token: &str, room: &str, delivery: &Delivery) -> Request {
    let path = ["_matrix", "client", "v3", "rooms", room, "send", "m.room.message", delivery.id.as_str()];
    // Without `m.mentions`, servers search the text for names and `@room`.
    let body = json!({"msgtype": "m.notice", "body": plain_text(delivery), "m.mentions": {}});
    Request::json(Method::PUT, below(homeserver, &path), &body)
        .header("authorization", format!("Bearer {token}"))
}

/// Text of a message: its news, reasons and link.
pub(super) fn plain_text(delivery: &Delivery) -> String {
    let Delivery { message, link, .. } = delivery;
    joined([&message.title, &message.text, link.as_deref().unwrap_or_default()])
}

fn joined(lines: [&str; 3]) -> String {
    let lines: Vec<&str> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use schema::kinds::cluster::NotificationEvent;
    use schema::records::{Message, MessageState};

    use super::*;

    fn delivery() -> Delivery {
        let message = Message {
            event: NotificationEvent::Rollout,
            state: MessageState::Failure,
            title: "web: \"bad\" <!channel> & more".to_owned(),
            text: "first\nsecond @channel".to_owned(),
            page: "/objects".to_owned(),
            source: None,
            commit: None,
        };
        Delivery {
            id: "d-1".to_owned(),
            subject: "rollout".to_owned(),
            message,
            link: Some("https://page.example/a?b=1&c=2".to_owned()),
            may_have_arrived: true,
        }
    }

    fn header<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
        request.headers.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str())
    }

    fn body(request: &Request) -> Json {
        serde_json::from_slice(request.body.as_deref().unwrap()).unwrap()
    }

    fn url() -> Url {
        Url::parse("https://hooks.example/services/x").unwrap()
    }

    // The vector of the libraries of Standard Webhooks; the second by Python's hmac.
    #[test]
    fn signatures_are_those_of_standard_webhooks() {
        for (key, wanted) in [
            ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
            ("raw-text-key\n", "v1,Z0p6Okg4oEjVVwZbuUmXN4V00pk5imDodUV80IYSCQU="),
        ] {
            let key = key_bytes(key).unwrap();
            let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
            assert_eq!(signature(&key, id, 1_614_265_330, r#"{"test": 2432232314}"#), wanted);
        }
        assert!(key_bytes("whsec_§").is_err());
    }

    #[test]
    fn a_webhook_has_all_values_and_a_signature_of_what_is_sent() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let settings = NotificationWebhook::default();
        let request = webhook(&settings, url(), Some("key"), (&delivery(), "lab"), now).unwrap();
        assert_eq!(
            (request.method.as_str(), header(&request, "content-type")),
            ("POST", Some("application/json"))
        );
        let text = String::from_utf8(request.body.clone().unwrap()).unwrap();
        let signed = signature(b"key", "d-1", 1_700_000_000, &text);
        assert_eq!(header(&request, "webhook-signature"), Some(signed.as_str()));
        assert_eq!(header(&request, "webhook-id"), Some("d-1"));
        assert_eq!(header(&request, "webhook-timestamp"), Some("1700000000"));
        assert_eq!(
            body(&request),
            json!({
                "title": "web: \"bad\" <!channel> & more",
                "text": "first\nsecond @channel",
                "state": "failure",
                "event": "rollout",
                "subject": "rollout",
                "source": "",
                "commit": "",
                "link": "https://page.example/a?b=1&c=2",
                "id": "d-1",
                "cluster": "lab",
            })
        );
        let template = Some(r#"{"msg": ["{{title}} ({{state}}, {{cluster}})"]}"#.to_owned());
        let settings = NotificationWebhook { template, url: None };
        let request = webhook(&settings, url(), None, (&delivery(), ""), now).unwrap();
        assert_eq!(body(&request), json!({"msg": ["web: \"bad\" <!channel> & more (failure, )"]}));
        assert_eq!(header(&request, "webhook-signature"), None);
    }

    #[test]
    fn every_placeholder_has_a_value() {
        assert!(PLACEHOLDERS.iter().all(|name| value(&delivery(), "", name).is_some()));
        assert_eq!(value(&delivery(), "", "page"), None);
    }

    // Would fail without the escapes: `<!channel>` notifies everyone in Slack, `@channel` in Mattermost.
    #[test]
    fn no_text_becomes_a_mention_in_slack() {
        let body = body(&slack(url(), &delivery()));
        let wanted = "web: \"bad\" &lt;!channel&gt; &amp; more\nfirst\nsecond @\u{200b}channel\n\
                      <https://page.example/a?b=1&amp;c=2>";
        assert_eq!((&body["text"], &body["parse"]), (&json!(wanted), &json!("none")));
    }

    #[test]
    fn a_repetition_in_matrix_has_the_same_address() {
        let homeserver = Url::parse("https://matrix.example").unwrap();
        let request = matrix(&homeserver, "canary", "!a/b:example.org", &delivery());
        let wanted =
            "https://matrix.example/_matrix/client/v3/rooms/!a%2Fb:example.org/send/m.room.message/d-1";
        assert_eq!((request.method.as_str(), request.url.as_str()), ("PUT", wanted));
        assert_eq!(header(&request, "authorization"), Some("Bearer canary"));
        let wanted = "web: \"bad\" <!channel> & more\nfirst\nsecond @channel\nhttps://page.example/a?b=1&c=2";
        assert_eq!(body(&request), json!({"msgtype": "m.notice", "body": wanted, "m.mentions": {}}));
    }
}
