// Copies what a button names. Without this script there are no such buttons.
"use strict";
document.documentElement.classList.add("js");

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // The page has no clipboard at a host name without TLS.
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await copy(button.dataset.copy);
  button.focus();
  button.classList.add("copied");
  const spoken = document.getElementById("spoken");
  if (spoken) spoken.textContent = "Copied.";
  setTimeout(() => button.classList.remove("copied"), 1500);
});
