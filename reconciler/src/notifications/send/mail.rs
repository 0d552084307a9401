//! Mail over SMTP, always encrypted: by STARTTLS at `smtp://`, from the start at `smtps://`. Nothing is sent, no login
//! either, before the server's certificate is verified.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, SinglePart};
use lettre::transport::smtp::Error as SmtpError;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, Message};
use reqwest::Url;
use schema::errors::error_chain;
use schema::kinds::cluster::NotificationSmtp;
use schema::trust::chain_from_pem;
use schema::violation::visible;
use tokio::time::timeout;

use super::address::resolve;
use super::exchange::{CONNECT_MAX, Delivery, DeliveryError, DeliveryOutcome, Route, Secrets};
use super::webhook::plain_text;

/// Longest wait for the server's farewell. The mail is accepted before it.
const QUIT_MAX: Duration = Duration::from_millis(250);

/// Sends a message as mail.
pub(super) async fn deliver(
    smtp: &NotificationSmtp,
    delivery: &Delivery,
    route: &Route<'_>,
) -> Result<DeliveryOutcome, DeliveryError> {
    let url = route.secrets.get("url").map_or("", String::as_str);
    let server = Server::parse(url).map_err(DeliveryError::new)?;
    let login = login(route.secrets).map_err(DeliveryError::new)?;
    let message = compose(smtp, delivery, SystemTime::now()).map_err(DeliveryError::new)?;
    let sending = async {
        let addresses =
            resolve(&server.host, server.port, &route.bounds(true)).await.map_err(DeliveryError::new)?;
        let connection = connect(&server, &addresses, route).await?;
        send(connection, &server, login.as_ref(), &message).await
    };
    route.in_time(&server.place(), Box::pin(sending)).await
}

/// Connects, and encrypts the connection.
async fn connect(
    server: &Server,
    addresses: &[SocketAddr],
    route: &Route<'_>,
) -> Result<AsyncSmtpConnection, DeliveryError> {
    let (domain, ca) = (server.host.trim_matches(['[', ']']).to_owned(), route.ca());
    // It loads the machine's CAs.
    let tls = tokio::task::spawn_blocking(move || tls_parameters(domain, ca.as_deref())).await;
    let tls = tls.map_err(|error| DeliveryError::new(error.to_string()))?.map_err(DeliveryError::new)?;
    let place = server.place();
    let failed = |error: SmtpError| route.connection_failure(&place, &error);
    let hello = ClientId::default();
    let from_start = server.is_encrypted.then(|| tls.clone());
    let connected =
        AsyncSmtpConnection::connect_tokio1(addresses, Some(CONNECT_MAX), &hello, from_start, None).await;
    let mut connection = connected.map_err(failed)?;
    if !server.is_encrypted {
        if !connection.can_starttls() {
            let why = format!("cannot connect to {place}: it does not offer STARTTLS: use smtps://");
            return Err(DeliveryError::new(why));
        }
        connection.starttls(tls, &hello).await.map_err(failed)?;
    }
    Ok(connection)
}

async fn send(
    mut connection: AsyncSmtpConnection,
    server: &Server,
    login: Option<&Credentials>,
    message: &Message,
) -> Result<DeliveryOutcome, DeliveryError> {
    let failed = |act: &'static str| {
        move |error: SmtpError| {
            DeliveryError::new(format!("{act} {}: {}", server.place(), visible(&error_chain(&error))))
        }
    };
    if let Some(login) = login {
        let accepted = connection.auth(DEFAULT_MECHANISMS, login).await;
        accepted.map_err(failed("the login is not accepted by"))?;
    }
    let accepted = connection.send(message.envelope(), &message.formatted()).await;
    accepted.map_err(failed("the mail is not accepted by"))?;
    let _ = timeout(QUIT_MAX, connection.quit()).await;
    Ok(DeliveryOutcome::Sent)
}

/// Mail server, as in the secret's `url`.
#[derive(Debug, PartialEq, Eq)]
struct Server {
    host: String,
    port: u16,
    /// Set if the connection is encrypted from its start.
    is_encrypted: bool,
}

impl Server {
    fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Parses `smtp://HOST:587` or `smtps://HOST:465`. The error does not repeat it.
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = || "its `url` is not smtp://HOST:587 or smtps://HOST:465".to_owned();
        let url = Url::parse(url.trim()).map_err(|_| wrong())?;
        let (is_encrypted, default) = match url.scheme() {
            "smtp" => (false, 587),
            "smtps" => (true, 465),
            _ => return Err(wrong()),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("its `url` has a login; put it into `username` and `password`".to_owned());
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(wrong)?.to_owned();
        Ok(Self { host, port: url.port().unwrap_or(default), is_encrypted })
    }
}

fn login(secrets: &Secrets) -> Result<Option<Credentials>, String> {
    match (secrets.get("username"), secrets.get("password")) {
        (Some(user), Some(password)) => {
            Ok(Some(Credentials::new(user.trim().to_owned(), password.trim().to_owned())))
        }
        (None, None) => Ok(None),
        _ => Err("its secret has only one of `username` and `password`".to_owned()),
    }
}

/// Parameters that verify the server's certificate for `domain`, by the machine's CAs and those in `ca`.
fn tls_parameters(domain: String, ca: Option<&str>) -> Result<TlsParameters, String> {
    let damaged = |error: &dyn std::error::Error| format!("its `ca` is damaged: {error}");
    let mut builder = TlsParameters::builder(domain);
    let certificates = ca.map_or_else(|| Ok(Vec::new()), |ca| chain_from_pem(ca.as_bytes()));
    for certificate in certificates.map_err(|error| damaged(&error))? {
        let der = certificate.to_der().map_err(|error| damaged(&error))?;
        builder = builder.add_root_certificate(Certificate::from_der(der).map_err(|error| damaged(&error))?);
    }
    builder.build().map_err(|error| error_chain(&error))
}

/// Writes the mail. Each repetition has the same Message-ID.
fn compose(smtp: &NotificationSmtp, delivery: &Delivery, now: SystemTime) -> Result<Message, String> {
    let mailbox = |address: &str| {
        let parsed = address.parse::<Address>();
        parsed
            .map(|address| Mailbox::new(None, address))
            .map_err(|error| format!("cannot write to `{}`: {error}", address.escape_debug()))
    };
    let automatic = HeaderValue::new(
        HeaderName::new_from_ascii_str("Auto-Submitted"),
        // RFC 3834: nobody's holiday answers it.
        "auto-generated".to_owned(),
    );
    let mut builder = Message::builder()
        .date(now)
        .message_id(Some(format!("<{}@minik8s>", delivery.id)))
        .subject(delivery.message.title.clone())
        .raw_header(automatic)
        .from(mailbox(&smtp.from)?);
    for address in &smtp.to {
        builder = builder.to(mailbox(address)?);
    }
    builder.singlepart(SinglePart::plain(plain_text(delivery))).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use schema::kinds::cluster::NotificationEvent;
    use schema::records::MessageState;

    use super::*;

    fn delivery(title: &str, text: &str) -> Delivery {
        let message = schema::records::Message {
            event: NotificationEvent::Disk,
            state: MessageState::Failure,
            title: title.to_owned(),
            text: text.to_owned(),
            page: String::new(),
            source: None,
            commit: None,
        };
        Delivery {
            id: "d-1".to_owned(),
            subject: "disk.n1".to_owned(),
            message,
            link: Some("https://page.example/nodes".to_owned()),
            may_have_arrived: false,
        }
    }

    fn smtp() -> NotificationSmtp {
        NotificationSmtp {
            from: "minik8s@example.org".to_owned(),
            to: vec!["ops@example.org".to_owned(), "kim@example.org".to_owned()],
        }
    }

    fn mail(delivery: &Delivery) -> String {
        let message = compose(&smtp(), delivery, SystemTime::UNIX_EPOCH).unwrap();
        String::from_utf8(message.formatted()).unwrap()
    }

    #[test]
    fn a_mail_has_the_news_as_subject_and_the_reasons_below() {
        let text = mail(&delivery("Disk of n1 is nearly full", "3 GiB are free"));
        for line in [
            "Message-ID: <d-1@minik8s>",
            "Subject: Disk of n1 is nearly full",
            "Auto-Submitted: auto-generated",
            "From: minik8s@example.org",
            "To: ops@example.org, kim@example.org",
            "Date: Thu, 01 Jan 1970 00:00:00 +0000",
            "3 GiB are free",
            "https://page.example/nodes",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("nodes\r\n") && !text.ends_with("\r\n\r\n"), "{text:?}");
        assert_eq!(
            text,
            mail(&delivery("Disk of n1 is nearly full", "3 GiB are free")),
            "a repetition is the same"
        );
    }

    // Would fail if a title's line ends reached the head.
    #[test]
    fn nothing_in_a_message_becomes_a_header() {
        let text =
            mail(&delivery("full\r\nBcc: eve@evil.example\r\n\r\nbody", "a\r\n.\r\nBcc: eve@evil.example"));
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(body.contains("Bcc: eve@evil.example"), "{body}");
        let message = compose(&smtp(), &delivery("a", ""), SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(message.envelope().to().len(), 2);
        let mut forged = smtp();
        forged.to.push("ops@example.org\r\nBcc: eve@evil.example".to_owned());
        assert!(compose(&forged, &delivery("a", ""), SystemTime::UNIX_EPOCH).is_err());
    }

    #[test]
    fn servers_are_named_by_their_scheme_host_and_port() {
        let server = |host: &str, port, is_encrypted| Server { host: host.to_owned(), port, is_encrypted };
        for (url, wanted) in [
            ("smtp://mail.example", server("mail.example", 587, false)),
            ("smtp://mail.example:25/", server("mail.example", 25, false)),
            ("smtps://[::1]:4465\n", server("[::1]", 4465, true)),
            ("smtps://10.0.0.9", server("10.0.0.9", 465, true)),
        ] {
            assert_eq!(Server::parse(url).unwrap(), wanted);
        }
        for url in
            ["", "mail.example:587", "http://mail.example", "smtp://", "smtp://kim:s3cret@mail.example"]
        {
            let why = Server::parse(url).unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
    }

    #[test]
    fn a_damaged_ca_is_an_error() {
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let error = tls_parameters("h".to_owned(), Some(pem)).err();
        assert!(error.is_some_and(|error| error.contains("`ca` is damaged")));
    }
}
