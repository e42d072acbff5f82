// Loads the page's contents again and again, as the server renders them.
"use strict";
const live = document.getElementById("live");
const offline = document.getElementById("offline");
const PAUSE_MS = 2000;

async function update() {
  // Nobody looks, or somebody is copying a key.
  if (document.hidden || !getSelection().isCollapsed) return;
  try {
    const response = await fetch(live.dataset.url, { credentials: "same-origin" });
    if (response.status === 401) return location.reload();
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    const html = await response.text();
    if (getSelection().isCollapsed && !live.contains(document.activeElement)) live.innerHTML = html;
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
keepUpdating();
