// Updates the page while its chain runs. Only sections that have changed are replaced. Details that the reader has
// opened stay open, and the scroll position does not change.
"use strict";

const PERIOD_MS = 3000;
const status = document.getElementById("followed");
let text = null;
let served = sectionsOf(document);

function sectionsOf(page) {
  return new Map([...page.querySelectorAll("main > section")].map((section) => [section.id, section.outerHTML]));
}

function summariesOf(section) {
  return [...section.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
}

function renewed(fresh) {
  const old = document.getElementById(fresh.id);
  if (old && served.get(fresh.id) === fresh.outerHTML) return old;
  const section = document.importNode(fresh, true);
  const opened = old ? summariesOf(old) : [];
  for (const summary of section.querySelectorAll("details > summary")) {
    summary.parentElement.open = opened.includes(summary.textContent);
  }
  return section;
}

function show(page) {
  const fresh = sectionsOf(page);
  const place = window.scrollY;
  document.querySelector("main").replaceChildren(...[...page.querySelectorAll("main > section")].map(renewed));
  for (const part of ["header > p:not([id])", "header > nav"]) {
    document.querySelector(part).replaceWith(document.importNode(page.querySelector(part), true));
  }
  served = fresh;
  window.scrollTo({ top: place, behavior: "instant" });
}

async function look() {
  try {
    const answer = await fetch("/", { cache: "no-cache" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const body = await answer.text();
    if (body !== text) {
      show(new DOMParser().parseFromString(body, "text/html"));
      text = body;
    }
    status.className = "";
    status.textContent = `follows the chain; last read at ${new Date().toLocaleTimeString()}`;
  } catch {
    if (!status.className) status.textContent += ". The server no longer answers, so the page shows the chain at that time.";
    status.className = "lost";
  }
  setTimeout(look, PERIOD_MS);
}

look();
