// Loads the page's parts again and again, as the server renders them.
"use strict";
const live = document.getElementById("live");
const offline = document.getElementById("offline");
const spoken = document.getElementById("spoken");
const PAUSE_MS = 2000;
const FOCUSABLE = "a, button, summary";

// What a link or button is about, so that the one in its place can be found.
const about = (one) => one.getAttribute("href") ?? one.dataset.copy ?? one.parentElement.id;
const verdict = () => document.getElementById("verdict").textContent;

function showPart(fresh) {
  const part = document.getElementById(fresh.id);
  const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const same = (one) => one.tagName === focused.tagName && about(one) === about(focused);
  const place = focused && [...part.querySelectorAll(FOCUSABLE)].filter(same).indexOf(focused);
  part.innerHTML = fresh.innerHTML;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (focused) {
    [...part.querySelectorAll(FOCUSABLE)].filter(same)[place]?.focus({ preventScroll: true });
  }
}

function showTimes() {
  // The server does not know the reader's time zone.
  for (const one of document.querySelectorAll("time[data-clock]")) {
    const options = { hour: "2-digit", minute: "2-digit", hour12: false };
    one.textContent = new Date(one.dateTime).toLocaleTimeString([], options);
  }
}

async function update() {
  // Nobody looks, or somebody is copying a key.
  if (document.hidden || !getSelection().isCollapsed) return;
  try {
    const response = await fetch(live.dataset.url, { credentials: "same-origin" });
    if (response.status === 401) return location.reload();
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    const html = await response.text();
    if (getSelection().isCollapsed) {
      const before = verdict();
      const fresh = new DOMParser().parseFromString(html, "text/html");
      fresh.querySelectorAll("[data-part]").forEach(showPart);
      showTimes();
      // The whole page would be too much to hear every two seconds.
      if (verdict() !== before) spoken.textContent = verdict();
    }
    offline.hidden = true;
  } catch (error) {
    offline.textContent = `Not up to date: ${error.message}`;
    offline.hidden = false;
  }
}

async function keepUpdating() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    await update();
  }
}
showTimes();
keepUpdating();
