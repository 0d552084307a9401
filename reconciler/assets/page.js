// Keeps a page up to date: takes the parts that changed from one event stream, and closes it while the tab is hidden.
"use strict";
(() => {
  const url = document.body.dataset.changes;
  const live = document.getElementById("live");
  for (const log of document.querySelectorAll("pre.log")) log.scrollTop = log.scrollHeight;
  if (!url || !live || !window.EventSource) return;
  const same = { createHTML: (html) => html };
  // The server escapes everything that it did not write itself.
  const policy = window.trustedTypes ? window.trustedTypes.createPolicy("minik8s", same) : same;
  let stream = null;
  let have = document.body.dataset.have || "";
  let pause = 1000;
  let timer = 0;
  let ended = false;

  const say = (word) => {
    if (live.textContent !== word) live.textContent = word;
  };

  // Replaces a part; what was open stays open, and the focus stays where it was.
  const replace = ({ id, html }) => {
    const part = document.getElementById(id);
    if (!part) return;
    const open = [...part.querySelectorAll("details[open][id]")].map((one) => one.id);
    const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const focus = part.contains(document.activeElement) ? document.activeElement.id : "";
    part.innerHTML = policy.createHTML(html);
    for (const one of open) {
      const details = document.getElementById(one);
      if (details) details.open = true;
    }
    [...part.querySelectorAll(".scroll")].forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
    const again = focus && document.getElementById(focus);
    if (again) again.focus({ preventScroll: true });
  };

  // Adds lines to a log, or says why there are none; a reader at its end stays there.
  const append = ({ id, html, problem = "" }) => {
    const log = document.getElementById(id);
    if (!log) return;
    log.previousElementSibling.innerHTML = policy.createHTML(problem);
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    log.insertAdjacentHTML("beforeend", policy.createHTML(html));
    while (log.childElementCount > 5000) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  };

  const close = () => {
    window.clearTimeout(timer);
    if (stream) stream.close();
    stream = null;
  };

  const open = () => {
    close();
    const current = new EventSource(`${url}&have=${encodeURIComponent(have)}`);
    stream = current;
    current.addEventListener("parts", (event) => {
      have = event.lastEventId;
      pause = 1000;
      for (const part of JSON.parse(event.data)) replace(part);
      say("live");
    });
    current.addEventListener("lines", (event) => {
      have = event.lastEventId;
      pause = 1000;
      for (const lines of JSON.parse(event.data)) append(lines);
      ended = false;
      say("live");
    });
    // All logs have ended, until a container is started again.
    current.addEventListener("end", () => {
      ended = true;
      close();
      say("ended");
      timer = window.setTimeout(open, 5000);
    });
    current.onopen = () => { if (!ended) say("live"); };
    current.onerror = () => {
      say("reconnecting");
      close();
      // Not all pages at once after a restart of the server.
      timer = window.setTimeout(open, pause * (0.5 + Math.random()));
      pause = Math.min(pause * 2, 30000);
    };
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      say("paused");
    } else {
      open();
    }
  });
  if (!document.hidden) open();
})();
