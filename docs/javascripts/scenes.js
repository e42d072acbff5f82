/* Plays the recordings of docs/explanation/see-it-run.md. It decides nothing: it shows events. */
"use strict";
(() => {
  const NODES = ["n1", "n2", "n3", "n4", "n5"];
  const CLIENTS = ["A", "B", "C"];
  const stillness = matchMedia("(prefers-reduced-motion: reduce)");

  function element(tag, className, text, parent) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // A token is in microseconds since 1970: the digits that differ are its last ones.
  const short = (token) => (token ? "…\u2060" + token.slice(-7) : "");
  const shortened = (text) => text.replace(/\d{16}/g, short);

  // What the list says of an event; "": nothing.
  function words(event) {
    const [kind, , a, b, c, d, e] = event;
    if (kind === "client") return b === "holds the lock" && c ? `${a} holds the lock, token ${short(c)}` : `${a} ${b}`;
    if (kind === "resource") return writeWords(a, b, c);
    if (kind === "message") return `${b} → ${c}: ${shortened(d)}${e ? "" : " (lost)"}`;
    if (!event.before) return "";
    const said = [];
    const [, , , isUp, holder, floor, ahead] = event;
    const before = event.before;
    if (isUp !== before[3]) said.push(isUp ? "runs again" : "is down");
    if (holder !== before[4] && isUp) said.push(holder ? `has the lock key of ${holder}` : "has no lock key");
    if (floor !== before[5] && floor) said.push(`has the floor ${short(floor)}`);
    if (ahead !== before[6]) said.push(`has a clock that is ${ahead} s ahead`);
    return said.length ? `${a} ${said.join(", ")}` : "";
  }
  function writeWords(client, token, isAccepted) {
    const shown = token ? `, token ${short(token)}` : ", without a token";
    return `resource ${isAccepted ? "accepts" : "refuses"} the write of ${client}${shown}`;
  }

  class Player {
    constructor(root, scene) {
      this.root = root;
      this.scene = scene;
      this.build();
      this.choose(0);
    }

    build() {
      const { root, scene } = this;
      const bar = element("div", "scene-bar", "", root);
      const label = element("label", "", "Run: ", bar);
      this.variants = element("select", "", "", label);
      scene.variants.forEach((one, number) => {
        element("option", "", one.label, this.variants).value = number;
      });
      this.variants.onchange = () => this.choose(Number(this.variants.value));
      this.stage = element("div", "scene-stage", "", root);
      this.stage.setAttribute("aria-hidden", "true"); // the list says the same
      this.cards = {};
      const nodes = element("div", "scene-row", "", this.stage);
      NODES.forEach((name) => this.card(name, nodes));
      const others = element("div", "scene-row scene-others", "", this.stage);
      [...CLIENTS, "resource"].forEach((name) => this.card(name, others));
      this.dots = element("div", "scene-dots", "", this.stage);
      const controls = element("div", "scene-bar", "", root);
      this.play = element("button", "scene-play", "Play", controls);
      this.play.onclick = () => (this.isPlaying ? this.pause() : this.start());
      element("button", "", "Back", controls).onclick = () => this.step(-1);
      element("button", "", "Step", controls).onclick = () => this.step(1);
      const speed = element("label", "", "Speed ", controls);
      this.speed = element("select", "", "", speed);
      [["½", 0.5], ["1", 1], ["2", 2], ["8", 8]].forEach(([text, value]) => {
        element("option", "", text, this.speed).value = value;
      });
      this.speed.value = 1;
      this.clock = element("output", "scene-clock", "", controls);
      this.scrub = element("input", "scene-scrub", "", root);
      this.scrub.type = "range";
      this.scrub.min = 0;
      this.scrub.setAttribute("aria-label", "Time of " + scene.title);
      this.scrub.oninput = () => { this.pause(); this.show(Number(this.scrub.value) / 1000); };
      this.said = element("p", "scene-said", "", root);
      const details = element("details", "scene-events", "", root);
      element("summary", "", "Events as a list", details);
      this.list = element("ol", "", "", details);
    }

    card(name, parent) {
      const box = element("div", "scene-card", "", parent);
      element("strong", "", name, box);
      this.cards[name] = { box, first: element("span", "", "", box), second: element("span", "scene-small", "", box) };
    }

    choose(number) {
      this.pause();
      this.events = this.scene.variants[number].events;
      const last = {};
      this.list.replaceChildren();
      this.lines = [];
      for (const event of this.events) {
        if (event[0] === "node") {
          const before = last[event[2]];
          event.before = before;
          event.isRestarted = Boolean(before && (before.isRestarted || !before[3]) && event[3]);
          last[event[2]] = event;
        }
        const text = words(event);
        if (text) {
          const item = element("li", "", `${event[1].toFixed(1)} ms  ${text}`, this.list);
          this.lines.push({ at: event[1], text, item, isMain: event[0] === "client" || event[0] === "resource" });
        }
      }
      this.stretch();
      const present = new Set(this.events.map((one) => one[2]));
      this.cards.B.box.hidden = !present.has("B");
      for (const name of [...NODES, "C"]) this.cards[name].box.classList.toggle("scene-absent", !present.has(name));
      this.show(0);
    }

    // Virtual time is shown unevenly: a round takes milliseconds, a lease a second.
    stretch() {
      const times = new Set([0]);
      for (const one of this.events) { times.add(one[1]); if (one[0] === "message") times.add(one[2]); }
      const last = Math.max(...this.events.filter((one) => one[0] !== "node" || one.before).map((one) => one[1]));
      this.times = [...times].filter((one) => one <= last + 20).sort((a, b) => a - b);
      this.shown = [0];
      for (let i = 1; i < this.times.length; i++) {
        this.shown.push(this.shown[i - 1] + Math.min(0.9, (this.times[i] - this.times[i - 1]) * 0.08));
      }
      this.end = this.shown[this.shown.length - 1];
      this.scrub.max = Math.ceil(this.end * 1000);
    }

    timeAt(shown) {
      let i = this.shown.findIndex((one) => one >= shown);
      if (i < 0) return this.times[this.times.length - 1];
      if (i === 0) return this.times[0];
      const share = (shown - this.shown[i - 1]) / (this.shown[i] - this.shown[i - 1] || 1);
      return this.times[i - 1] + share * (this.times[i] - this.times[i - 1]);
    }

    start() {
      if (this.at >= this.end) this.at = 0;
      this.isPlaying = true;
      this.play.textContent = "Pause";
      let before = performance.now();
      const frame = (now) => {
        if (!this.isPlaying) return;
        const at = this.at + ((now - before) / 1000) * Number(this.speed.value);
        before = now;
        this.show(Math.min(at, this.end));
        if (at >= this.end) this.pause();
        else requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    }

    pause() {
      this.isPlaying = false;
      this.play.textContent = "Play";
    }

    step(direction) {
      this.pause();
      const stops = this.lines.map((line) => this.shown[this.times.indexOf(line.at)]).filter((one) => one !== undefined);
      const next = direction > 0
        ? stops.find((one) => one > this.at + 1e-6)
        : stops.reverse().find((one) => one < this.at - 1e-6);
      this.show(next ?? (direction > 0 ? this.end : 0));
    }

    show(at) {
      this.at = at;
      const time = this.timeAt(at) + 1e-6;
      this.scrub.value = at * 1000;
      this.clock.textContent = `${time.toFixed(time < 1000 ? 1 : 0)} ms`;
      this.scrub.setAttribute("aria-valuetext", this.clock.textContent);
      const latest = {};
      for (const one of this.events) if (one[1] <= time && one[0] !== "message") latest[one[0] === "resource" ? "resource" : one[2]] = one;
      for (const name of NODES) this.showNode(this.cards[name], latest[name], time);
      for (const name of CLIENTS) this.showClient(this.cards[name], latest[name]);
      this.showResource(latest.resource);
      this.showDots(time);
      let said = "";
      for (const line of this.lines) {
        const isPast = line.at <= time;
        line.item.classList.toggle("scene-past", isPast);
        if (isPast && line.isMain) said = line.text;
      }
      this.said.textContent = said || this.scene.text;
    }

    showNode(card, event, time) {
      const [, , , isUp, holder, floor, ahead] = event || [0, 0, 0, true, "", "", 0];
      card.box.dataset.state = isUp ? (holder ? "held-" + holder : "free") : "down";
      card.first.textContent = isUp ? holder || "free" : "down";
      const clock = isUp ? `${((time / 1000) + (ahead || 0)).toFixed(2)} s` : "";
      card.box.classList.toggle("scene-restarted", Boolean(event?.isRestarted));
      const mark = event?.isRestarted ? "restarted" : "";
      card.second.textContent = [clock, short(floor), mark].filter(Boolean).join("\n");
    }

    showClient(card, event) {
      const [, , name, text, token] = event || [0, 0, "", "", ""];
      card.box.dataset.state = text === "holds the lock" || text === "runs again" ? "held-" + name : text === "is frozen" ? "down" : "free";
      card.first.textContent = text.split(":")[0] || "idle";
      card.second.textContent = short(token);
    }

    showResource(event) {
      const card = this.cards.resource;
      const [, , client, , isAccepted, highest] = event || [];
      card.box.dataset.state = !event ? "free" : isAccepted ? "accepted" : "refused";
      card.first.textContent = event ? `${client} ${isAccepted ? "accepted" : "refused"}` : "not written";
      card.second.textContent = highest ? short(highest) : "";
    }

    showDots(time) {
      this.dots.replaceChildren();
      if (stillness.matches) return;
      const place = (name) => {
        const box = this.cards[name].box;
        const isTop = NODES.includes(name);
        return [box.offsetLeft + box.offsetWidth / 2, box.offsetTop + (isTop ? box.offsetHeight : 0)];
      };
      for (const [kind, from, to, sender, receiver, , arrives] of this.events) {
        if (kind !== "message" || from > time || to <= time) continue;
        const share = (time - from) / (to - from);
        const [x0, y0] = place(sender), [x1, y1] = place(receiver);
        const dot = element("i", arrives ? "" : "scene-lost", "", this.dots);
        dot.style.left = x0 + (x1 - x0) * share + "px";
        dot.style.top = y0 + (y1 - y0) * share + "px";
      }
    }
  }

  for (const root of document.querySelectorAll("[data-scene]")) {
    const scene = window.redlockRecordings.find((one) => one.name === root.dataset.scene);
    root.player = new Player(root, scene);
  }
})();
