"""A mail server that requires STARTTLS and a login, and writes each message that it accepts to a file.

mail.py PORT FOLDER BAD PATIENCE SEED: the login is in FOLDER/login, the certificate in FOLDER/tls.crt and FOLDER/tls.key.
Of 100 messages BAD get a temporary error or a cut connection, before or after the message was kept, but PATIENCE times at
most for one Message-ID. What RFC 5321, RFC 5322 or the login do not allow is refused, and noted in FOLDER/complaints.
"""

import asyncio
import email
import email.policy
import json
import os
import random
import re
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

folder = sys.argv[2]
port, bad, patience, seed = (int(sys.argv[at]) for at in [1, 3, 4, 5])
dice = random.Random(seed)
faults = {}
messages = 0


def path(name):
    return os.path.join(folder, name)


def complain(text):
    with open(path("complaints"), "a", encoding="utf-8") as file:
        file.write(text + "\n")


def login(server, session, envelope, mechanism, data):
    with open(path("login"), "rb") as file:
        user, password = file.read().split(b"\n")[:2]
    if (data.login, data.password) == (user, password):
        return AuthResult(success=True, auth_data=data)
    complain(f"login with {mechanism} by {data.login!r} and a wrong name or password")
    return AuthResult(success=False, handled=False)


def mistakes(envelope, message):
    """What RFC 5322 does not allow, one line each."""
    for name in ["From", "To", "Date", "Message-ID", "Subject"]:
        if len(message.get_all(name, [])) != 1:
            yield f"{len(message.get_all(name, []))} headers {name}"
    if not re.fullmatch(r"<[^<>@\s]+@[^<>@\s]+>", message.get("Message-ID", "").strip()):
        yield f"Message-ID {message.get('Message-ID')}"
    if message.get("Date") and message["Date"].datetime is None:
        yield f"Date {message['Date']}"
    if message.get("From") and [one.addr_spec for one in message["From"].addresses] != [envelope.mail_from]:
        yield f"From {message['From']}, and MAIL FROM {envelope.mail_from}"
    if message.get("To") and sorted(one.addr_spec for one in message["To"].addresses) != sorted(envelope.rcpt_tos):
        yield f"To {message['To']}, and RCPT TO {envelope.rcpt_tos}"
    if any(len(line) > 998 for line in envelope.content.split(b"\r\n")):
        yield "a line of more than 998 bytes"
    if re.search(rb"(?<!\r)\n|\r(?!\n)", envelope.content):
        yield "a line that ends with something other than CRLF"


def keep(envelope, message):
    global messages
    body = message.get_body(("plain",))
    kept = {
        "id": message["Message-ID"].strip(),
        "from": envelope.mail_from,
        "to": envelope.rcpt_tos,
        "subject": str(message["Subject"]),
        "text": body.get_content() if body else "",
        "raw": envelope.content.decode("utf-8", "replace"),
    }
    messages += 1
    name = path(f"{messages:04}.json")
    with open(name + ".draft", "w", encoding="utf-8") as file:
        json.dump(kept, file)
    os.rename(name + ".draft", name)


class Handler:
    async def handle_DATA(self, server, session, envelope):
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        found = list(mistakes(envelope, message))
        if found:
            complain("; ".join(found))
            return "554 5.6.0 " + found[0].encode("ascii", "replace").decode()
        number = message["Message-ID"]
        if faults.get(number, 0) >= patience or dice.randrange(100) >= bad:
            keep(envelope, message)
            return "250 2.0.0 kept"
        faults[number] = faults.get(number, 0) + 1
        fault = dice.choice(["busy", "cut before", "cut after"])
        if fault == "busy":
            return "451 4.3.0 try again later"
        if fault == "cut after":
            keep(envelope, message)
        server.transport.abort()
        # The end of the connection cancels this.
        await asyncio.sleep(3600)


async def serve():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path("tls.crt"), path("tls.key"))

    def protocol():
        return SMTP(
            Handler(),
            hostname="mail.test",
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=login,
            loop=asyncio.get_running_loop(),
        )

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    await server.serve_forever()


asyncio.run(serve())
