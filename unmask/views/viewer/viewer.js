// The trace viewer: UnmaskViewer.mount(element, data) shows a trace file's object (docs/traces.md) inside an element,
// and its push(piece) what is still being decoded.
// Plain DOM, no dependencies, no network. Text of a model only ever goes through textContent.
// t counts finished steps: 0 is the canvas before the first one, and a run of N steps is done at t = N.
"use strict";
globalThis.UnmaskViewer = (() => {
  const RAMP = ["#e3eefa", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#0b4f9c", "#08306b"];
  const PLAY_SECONDS = 8; // how long a whole decode takes at speed 1
  let made = 0; // viewers on this page, for unique ids

  // ---------------------------------------------------------------- the data

  // A run unfolded for random access: per step the eligible slots with their confidences, per slot what happened when.
  // `extend` takes its steps one by one, so a run can be shown while it is still being decoded.
  function unfold(run) {
    const L = run.length;
    const ids = new Int32Array(L).fill(run.mask_id);
    const events = Array.from({ length: L }, () => []); // {t, id, sure} in order; id -1: masked again
    const guesses = Array.from({ length: L }, () => []); // [t, id] in order
    for (const [slot, id] of run.given ?? []) {
      ids[slot] = id;
      events[slot].push({ t: 0, id });
    }
    const given = new Set((run.given ?? []).map(([slot]) => slot));
    const found = { ...run, L, N: 0, unfolded: [], events, guesses, given, final: ids, low: 0, high: 0, ms: 0, eot: 0,
      anchor: new Set(run.anchors ?? []), modulated: false };
    for (const step of run.steps) extend(found, step);
    return found;
  }

  function extend(run, step) {
    const { L, final: ids, events, guesses } = run, scale = run.scale ?? 10000;
    const t = ++run.N, [from, to] = step.window ?? [0, L];
    for (const slot of step.reopened ?? []) {
      ids[slot] = run.mask_id;
      events[slot].push({ t, id: -1 });
    }
    const slots = new Uint32Array(step.base.length);
    for (let i = from, n = 0; i < to; i++) if (ids[i] === run.mask_id) slots[n++] = i;
    const base = Float32Array.from(step.base, (v) => v / scale);
    const score = step.score ? Float32Array.from(step.score, (v) => v / scale) : base;
    let low = run.low, high = run.N > 1 ? run.high : 0;
    for (let i = 0; i < base.length; i++) {
      low = Math.min(low, base[i], score[i]);
      high = Math.max(high, base[i], score[i]);
    }
    for (let i = 0; i < step.guess.length; i += 2) guesses[step.guess[i]].push([t, step.guess[i + 1]]);
    const stages = [base, ...(step.between ?? []).map((part) => Float32Array.from(part, (v) => v / scale)), ...(step.score ? [score] : [])];
    const sure = (i) => stages.map((part) => part[i]); // c, what each modifier made of it, c~
    for (const slot of step.chosen) {
      const id = guesses[slot].at(-1)[1];
      ids[slot] = id;
      events[slot].push({ t, id, sure: sure(place(slots, slot)) });
    }
    run.unfolded.push({ slots, base, score, sure, chosen: step.chosen });
    Object.assign(run, { low, high: low === 0 && high <= 1 ? 1 : high, ms: run.ms + step.ms, modulated: run.modulated || Boolean(step.score),
      eot: ids.reduce((n, id) => n + (id === run.eot_ids[0]), 0) / L });
  }

  // Where a slot stands among the ascending slots of a step; -1 where it does not.
  function place(slots, slot) {
    let low = 0, high = slots.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (slots[middle] === slot) return middle;
      if (slots[middle] < slot) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }

  // The last entry at or before t.
  function latest(list, t, time) {
    for (let i = list.length - 1; i >= 0; i--) if (time(list[i]) <= t) return list[i];
    return null;
  }
  const stateAt = (run, slot, t) => {
    const event = latest(run.events[slot], t, (e) => e.t);
    return event && event.id >= 0 ? event : null;
  };
  const guessAt = (run, slot, t) => latest(run.guesses[slot], Math.max(t, 1), (g) => g[0])?.[1];

  // Whitespace and control characters as something to see.
  function visible(text) {
    return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, "�");
  }
  const spoken = (run, id) => run.tokens[id] ?? `#${id}`;
  const boxed = (run, id) => (id === run.eot_ids[0] ? "∅" : visible(spoken(run, id)).trim() || "␣");
  const said = (rule) => rule.replace(/Modulation$/, "").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase(); // PositionDecay: position decay
  const cells = (text) => [...text].reduce((n, c) => n + (/[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]|\p{Extended_Pictographic}/u.test(c) ? 2 : 1), 0);
  const short = (value) => (Math.abs(value) < 10 ? value.toFixed(value > 0.9995 && value < 1 ? 4 : 3) : value.toFixed(1));

  // ---------------------------------------------------------------- small DOM helpers

  function h(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child != null && child !== ""));
    return element;
  }

  function shade(fraction) { // a colour of the ramp and a text colour that reads on it
    const at = Math.max(0, Math.min(1, fraction)) * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2);
    const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
    const rgb = [0, 1, 2].map((k) => Math.round(part(RAMP[i], k) + (at - i) * (part(RAMP[i + 1], k) - part(RAMP[i], k))));
    const linear = rgb.map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    return [`rgb(${rgb})`, luminance > 0.179 ? "#000000" : "#ffffff"];
  }

  // ---------------------------------------------------------------- one run: chart, strip and token boxes

  class RunView {
    constructor(data, id, tip) {
      this.run = unfold(data);
      this.tip = tip;
      this.t = -1;
      const run = this.run, name = run.method || "decode";
      this.badge = h("span", {});
      this.facts = h("span", { class: "um-facts", title: run.recipe ?? "" });
      this.status = h("span", { class: "um-status" });
      this.canvas = h("canvas", { class: "um-chart", role: "img" });
      this.boxes = Array.from({ length: run.L }, (_, slot) => h("span", { class: "um-box", role: "option", id: `${id}-${slot}`, "data-slot": slot }));
      this.grid = h("div", { class: "um-grid", role: "listbox", tabindex: 0, "aria-label": `Tokens of ${name}; arrow keys move` }, ...this.boxes);
      this.text = h("div", { class: "um-text", tabindex: 0, role: "region", "aria-label": `Final text of ${name}` });
      this.element = h("section", { class: "um-run", "aria-label": name },
        h("header", { class: "um-title" }, h("h2", {}, name), this.badge, this.status, this.facts),
        h("div", { class: "um-side" }, this.canvas),
        h("div", { class: "um-main" }, this.grid),
        h("div", { class: "um-final" }, h("h3", {}, "Final text"), this.text));
      this.listen();
      this.told();
    }

    // What is said about the run as a whole, and what follows from its number of steps: again whenever it has grown.
    told() {
      const run = this.run, ends = run.live ? Math.max(run.N, Math.ceil(run.L / 2)) : run.N;
      if (run.correct != null) {
        this.badge.className = `um-badge ${run.correct ? "um-right" : "um-wrong"}`;
        this.badge.textContent = run.correct ? "✓ right" : "✗ wrong";
      }
      this.facts.textContent = `∅ ${(100 * run.eot).toFixed(0)} % · ${run.N} steps · ${(run.ms / 1000).toFixed(run.ms < 9950 ? 2 : 0)} s`;
      if (run.live) this.text.replaceChildren(h("em", {}, "still being decoded"));
      else if ((run.text ?? "").trim()) this.text.textContent = run.text;
      else this.text.replaceChildren(h("em", {}, run.stopped ?? "(empty)"));
      if (this.ends !== ends) { // darker is later
        this.ends = ends;
        this.colours = Array.from({ length: ends + 1 }, (_, t) => shade(ends > 1 ? (t - 1) / (ends - 1) : 0));
        for (const box of this.boxes) box.key = null;
      }
      if (!run.live) this.boxes.forEach((box, slot) => (box.style.minWidth = `${Math.min(24, cells(boxed(run, run.final[slot])))}ch`));
    }

    // A step, the end, or what else became known of a run that is being decoded.
    grow(piece) {
      const { tokens, ...more } = { ...piece.end, ...piece.about };
      Object.assign(this.run.tokens, piece.tokens, tokens);
      if (piece.step) extend(this.run, piece.step);
      Object.assign(this.run, more, piece.end ? { live: false } : {});
      this.told();
      this.t = -1; // draw it anew
    }

    listen() {
      const slotOf = (event) => event.target.closest?.(".um-box")?.dataset.slot;
      this.grid.addEventListener("pointerover", (event) => slotOf(event) !== undefined && this.show(+slotOf(event), event.target));
      this.grid.addEventListener("pointerleave", () => this.tip.hide());
      this.grid.addEventListener("pointerdown", (event) => slotOf(event) !== undefined && this.activate(+slotOf(event)));
      this.grid.addEventListener("focus", () => this.activate(this.active ?? 0));
      this.grid.addEventListener("blur", () => { this.boxes[this.active]?.classList.remove("um-active"); this.tip.hide(); });
      this.grid.addEventListener("keydown", (event) => this.move(event));
      this.canvas.addEventListener("pointermove", (event) => {
        const box = this.canvas.getBoundingClientRect(), { left, width } = this.plot ?? { left: 0, width: 1 };
        const slot = Math.floor(((event.clientX - box.left - left) / width) * this.run.L);
        this.point(slot >= 0 && slot < this.run.L ? slot : null, event);
      });
      this.canvas.addEventListener("pointerleave", () => this.point(null));
    }

    point(slot, event) { // a slot under the pointer in the chart, marked in both places
      if (slot === this.pointed) return;
      this.boxes[this.pointed]?.classList.remove("um-pointed");
      this.pointed = slot;
      this.boxes[slot]?.classList.add("um-pointed");
      if (slot == null) this.tip.hide();
      else this.show(slot, { getBoundingClientRect: () => new DOMRect(event.clientX, this.canvas.getBoundingClientRect().top, 1, this.canvas.clientHeight) });
      this.draw();
    }

    activate(slot, scroll = true) {
      this.boxes[this.active]?.classList.remove("um-active");
      this.active = slot;
      const box = this.boxes[slot];
      box.classList.add("um-active");
      box.setAttribute("aria-label", this.describe(slot).join(", "));
      this.grid.setAttribute("aria-activedescendant", box.id);
      if (scroll) box.scrollIntoView({ block: "nearest" });
      this.show(slot, box);
    }

    move(event) {
      const at = this.active ?? 0, here = this.boxes[at];
      const row = (way) => { // the box above or below
        const x = here.offsetLeft + here.offsetWidth / 2;
        let best = at, top = null;
        for (let i = at + way; i >= 0 && i < this.boxes.length; i += way) {
          const box = this.boxes[i];
          if (box.offsetTop === here.offsetTop) continue;
          top ??= box.offsetTop;
          if (box.offsetTop !== top) break;
          if (best === at || Math.abs(box.offsetLeft + box.offsetWidth / 2 - x) < Math.abs(this.boxes[best].offsetLeft + this.boxes[best].offsetWidth / 2 - x)) best = i;
        }
        return best;
      };
      const to = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, ArrowDown: () => row(1), ArrowUp: () => row(-1), Home: () => 0, End: () => this.run.L - 1 }[event.key];
      if (event.key === "Escape") this.tip.hide();
      if (!to) return;
      event.preventDefault();
      event.stopPropagation();
      this.activate(Math.max(0, Math.min(this.run.L - 1, to())));
    }

    describe(slot) { // lines about a slot at the present step; the first one is its token
      const run = this.run, state = stateAt(run, slot, this.t), step = run.unfolded[Math.max(this.t, 1) - 1];
      const quoted = (id) => `“${id === run.eot_ids[0] ? "∅ " : ""}${visible(spoken(run, id))}”`;
      const sure = (stages) => { // confidence 0.810 → 0.321 (anchor × 0.55, support × 0.72)
        const did = (before, after) => (before ? `× ${(after / before).toFixed(2)}` : `→ ${short(after)}`);
        const parts = stages.slice(1).map((after, i) => `${said(run.modifiers?.[i] ?? "")} ${did(stages[i], after)}`);
        return `confidence ${short(stages[0])}${parts.length ? ` → ${short(stages.at(-1))}` : ""}${parts.length > 1 ? ` (${parts.join(", ")})` : ""}`;
      };
      const lines = [];
      if (state && run.given.has(slot)) lines.push(quoted(state.id), run.anchor.has(slot) ? "anchor, written before decoding" : "written before decoding");
      else if (state) lines.push(quoted(state.id), `decoded at step ${state.t} of ${run.N}`, sure(state.sure));
      else {
        const i = step ? place(step.slots, slot) : -1, guess = guessAt(run, slot, this.t);
        lines.push("still masked");
        if (guess !== undefined) lines.push(`predicted: ${quoted(guess)}`);
        if (i >= 0) lines.push(sure(step.sure(i)));
      }
      if (run.weight?.length && !run.given.has(slot)) lines.push(`anchor weight ${short(run.weight[slot])}`);
      return [...lines, `position ${slot}`];
    }

    show(slot, near) {
      const run = this.run, [title, ...lines] = this.describe(slot), state = stateAt(run, slot, this.t);
      const best = state && !run.given.has(slot) && (run.candidates ?? {})[slot];
      const rows = (best || []).map(([id, p]) => {
        const bar = h("i", {});
        bar.style.width = `${100 * p}%`;
        return h("tr", { class: id === state.id ? "um-taken" : null }, h("td", {}, id === run.eot_ids[0] ? "∅" : visible(spoken(run, id))), h("td", {}, p.toFixed(3)), h("td", {}, bar));
      });
      this.tip.show(near, h("strong", {}, title), ...lines.map((line) => h("div", {}, line)),
        rows.length ? h("table", {}, h("caption", {}, "candidates when it was decoded"), h("tbody", {}, ...rows)) : null);
    }

    go(t, guesses) {
      const run = this.run;
      t = Math.min(t, run.N);
      if (t === this.t && guesses === this.guesses) return;
      this.t = t;
      this.guesses = guesses;
      let done = 0;
      for (let slot = 0; slot < run.L; slot++) {
        const box = this.boxes[slot], state = stateAt(run, slot, t);
        const guess = !state && guesses ? guessAt(run, slot, t) : undefined;
        const key = state ? `${state.id}/${state.t}/${state.t === t}` : `?${guess}`;
        done += state ? 1 : 0;
        if (box.key === key) continue;
        box.key = key;
        const kind = !state ? (guess === undefined ? "um-masked" : "um-masked um-guess")
          : run.anchor.has(slot) ? "um-anchor" : run.given.has(slot) ? "um-given"
          : `${state.t === t ? "um-new" : ""} ${state.id === run.eot_ids[0] ? "um-eot" : ""}`;
        box.className = `um-box ${kind}${slot === this.active && document.activeElement === this.grid ? " um-active" : ""}`;
        box.textContent = state ? boxed(run, state.id) : guess === undefined ? "" : boxed(run, guess);
        const [back, front] = state && !run.given.has(slot) ? this.colours[state.t] : ["", ""];
        box.style.backgroundColor = back;
        box.style.color = front;
      }
      this.status.textContent = t >= run.N && !run.live ? run.stopped ?? "done" : `${Math.round((100 * done) / run.L)} % decoded`;
      if (document.activeElement === this.grid && this.active != null) this.activate(this.active, false);
      this.draw();
    }

    measure() { // size and colours are read when they change, not at every step: reading them makes the browser lay out
      const canvas = this.canvas, style = getComputedStyle(canvas), inks = {};
      for (const name of ["line", "muted", "anchor", "anchor-band", "base", "new", "score", "empty", "text"]) inks[name] = style.getPropertyValue(`--um-${name}`);
      this.look = { width: canvas.clientWidth, height: canvas.clientHeight, font: `11px ${style.fontFamily}`, inks };
      this.draw();
    }

    draw() {
      if (!this.look?.width || this.t < 0) return;
      const run = this.run, canvas = this.canvas, { width, height, inks, font } = this.look;
      const ratio = globalThis.devicePixelRatio || 1;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
      const pen = canvas.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      const left = 30, right = 4, top = 8, strip = 8, bottom = 18 + strip + 4;
      const w = width - left - right, tall = height - top - bottom, each = w / run.L;
      this.plot = { left, width: w };
      const x = (slot) => left + slot * each, y = (value) => top + tall * (1 - (value - run.low) / (run.high - run.low));
      const bars = (ink, slots, rect) => { // one path for all of them
        pen.fillStyle = ink;
        pen.beginPath();
        slots.forEach((slot, i) => pen.rect(...rect(slot, i)));
        pen.fill();
      };
      pen.font = font;
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      for (const value of [run.low, (run.low + run.high) / 2, run.high]) {
        pen.fillStyle = inks.line;
        pen.fillRect(left, Math.round(y(value)), w, 1);
        pen.fillStyle = inks.muted;
        pen.fillText(+value.toFixed(1), left - 5, y(value));
      }
      const bar = Math.max(each * (each > 3 ? 0.78 : 1), 0.75);
      const anchor = [...run.anchor];
      bars(inks["anchor-band"], anchor, (slot) => [x(slot), top, each, tall]);
      bars(inks.anchor, anchor, (slot) => [x(slot), top, Math.max(each, 1.5), 3]);
      const step = run.unfolded[Math.max(this.t, 1) - 1], now = this.t > 0;
      if (step) {
        const zero = y(run.low), wide = Math.max(bar, 2);
        const rise = (slot, value, width) => [x(slot) - (width - bar) / 2, Math.min(y(value), zero - 1), width, Math.max(1, zero - y(value))];
        if (run.modulated) bars(inks.base, step.slots, (slot, i) => rise(slot, step.base[i], bar));
        bars(inks.score, step.slots, (slot, i) => rise(slot, step.score[i], bar));
        if (now) bars(inks.new, step.chosen, (slot) => rise(slot, step.score[place(step.slots, slot)], wide)); // on top of their neighbours
      }
      const floor = top + tall + 4;
      pen.fillStyle = inks.empty;
      pen.fillRect(left, floor, w, strip);
      for (let slot = 0; slot < run.L; slot++) {
        const state = stateAt(run, slot, this.t);
        if (!state) continue;
        pen.fillStyle = run.anchor.has(slot) ? inks.anchor : run.given.has(slot) ? inks.muted : this.colours[state.t][0];
        pen.fillRect(x(slot), floor, Math.max(each, 0.75) + 0.3, strip);
      }
      pen.strokeStyle = inks.line;
      pen.strokeRect(left + 0.5, floor + 0.5, w - 1, strip - 1);
      if (this.pointed != null) {
        pen.fillStyle = inks.text;
        pen.fillRect(x(this.pointed) + each / 2 - 0.5, top, 1, tall + strip + 4);
      }
      pen.fillStyle = inks.muted;
      pen.textBaseline = "top";
      const every = [8, 16, 32, 64, 128, 256, 512].find((n) => n * each >= 44) ?? 1024;
      for (let slot = 0; slot < run.L; slot += every) {
        pen.textAlign = slot ? "center" : "left";
        if (x(slot) < width - 12) pen.fillText(slot, x(slot) + (slot ? each / 2 : 0), floor + strip + 5);
      }
      const peak = step && step.slots.length ? Math.max(...step.score) : null;
      canvas.setAttribute("aria-label", `Confidence over ${run.L} positions at step ${this.t} of ${run.N}` +
        (peak == null ? "" : `: ${step.slots.length} masked, highest ${short(peak)}, chosen ${step.chosen.slice(0, 8).join(", ")}`));
    }
  }

  // ---------------------------------------------------------------- the tooltip

  class Tip {
    constructor() {
      this.element = h("div", { class: "um-tip", role: "tooltip", hidden: true });
    }
    show(near, ...content) {
      this.element.replaceChildren(...content.filter(Boolean));
      this.element.hidden = false;
      const at = near.getBoundingClientRect(), size = this.element.getBoundingClientRect();
      const room = { x: document.documentElement.clientWidth, y: globalThis.innerHeight };
      const below = at.bottom + 8 + size.height < room.y || at.top - 8 - size.height < 0;
      this.element.style.left = `${Math.max(8, Math.min(at.left, room.x - size.width - 8))}px`;
      this.element.style.top = `${below ? at.bottom + 8 : at.top - 8 - size.height}px`;
    }
    hide() {
      this.element.hidden = true;
    }
  }

  // ---------------------------------------------------------------- the viewer

  // With `live`, runs may be absent or half done: push(piece, i) adds a piece of docs/traces.md to run i, and the newest step
  // is shown until somebody moves the slider away from it.
  function mount(element, data, { step = null, live = false } = {}) {
    if (data?.format !== "unmask-trace" || !(data.version <= 1)) {
      element.replaceChildren(h("p", { role: "alert" }, "This is not a trace that this viewer reads (format unmask-trace, version 1)."));
      return null;
    }
    const prefix = `um${++made}`, tip = new Tip();
    const questions = [...new Map(data.runs.map((run) => [JSON.stringify([run.prompt, run.gold]), run])).values()];
    const state = { t: 0, N: 0, views: [], playing: null, speed: 1, guesses: false, follows: live };

    const asked = h("div", { class: "um-prompt", tabindex: 0, role: "region", "aria-label": "Prompt" });
    const gold = h("div", { class: "um-gold" });
    const pick = h("select", { "aria-label": "Question", onchange: () => choose(+pick.value) },
      ...questions.map((run, i) => h("option", { value: i }, `${i + 1}. ${visible(run.prompt ?? "").slice(0, 60)}`)));
    const icon = h("span", { class: "um-icon", "aria-hidden": "true" });
    const word = h("span", {});
    const play = h("button", { type: "button", class: "um-play", onclick: toggle }, icon, word);
    const slider = h("input", { type: "range", min: 0, value: 0, step: 1, "aria-label": "Step", oninput: () => moved(+slider.value) });
    const label = h("output", { class: "um-step" });
    const back = h("button", { type: "button", "aria-label": "Previous step", title: "Previous step (←)", onclick: () => moved(state.t - 1) }, "‹");
    const forth = h("button", { type: "button", "aria-label": "Next step", title: "Next step (→)", onclick: () => moved(state.t + 1) }, "›");
    const speed = h("select", { "aria-label": "Speed", onchange: () => (state.speed = +speed.value) },
      ...[0.25, 0.5, 1, 2, 4].map((n) => h("option", { value: n, selected: n === 1 }, `${n}×`)));
    const wish = h("input", { type: "checkbox", onchange: () => { state.guesses = wish.checked; go(state.t, true); } });
    const runs = h("div", { class: "um-runs" });
    const sample = (kind, text, what) => h("span", { class: "um-key" }, h("span", { class: kind, "aria-hidden": "true" }, text), what);
    const legend = h("footer", { class: "um-legend" },
      h("span", { class: "um-key" }, "decoded", h("span", { class: "um-ramp", "aria-hidden": "true" }), "early → late"),
      sample("um-box um-new um-plain", "now", "decoded at this step"), sample("um-box um-anchor", "The", "anchor"),
      sample("um-box um-eot um-plain", "∅", "end of text"), sample("um-box um-masked", "\u2002", "masked"),
      sample("um-swatch um-swatch-score", "", "confidence that decides"), sample("um-swatch um-swatch-base", "", "before modulation"),
      h("span", { class: "um-keys" }, h("kbd", {}, "Space"), " play  ", h("kbd", {}, "←"), h("kbd", {}, "→"), " step  ", h("kbd", {}, "Home"), h("kbd", {}, "End"), "  ",
        h("kbd", {}, "G"), " guesses  ", h("kbd", {}, "Tab"), " into tokens"));
    const root = h("div", { class: "um" },
      h("header", { class: "um-head" }, questions.length > 1 ? pick : null, asked, gold),
      h("div", { class: "um-controls", role: "group", "aria-label": "Playback" }, play, back, slider, forth, label, speed,
        h("label", { class: "um-wish" }, wish, "guesses")),
      runs, legend, tip.element);

    function choose(index) {
      const { prompt, gold: answer } = questions[index] ?? {};
      stop();
      asked.textContent = prompt ?? "";
      asked.hidden = !prompt;
      gold.textContent = answer == null ? "" : `Gold answer: ${answer}`;
      state.views = data.runs.filter((run) => run.prompt === prompt && run.gold === answer).map((run, i) => new RunView(run, `${prefix}-${index}-${i}`, tip));
      runs.replaceChildren(...state.views.map((view) => view.element));
      state.views.forEach((view) => watcher.observe(view.canvas));
      counted();
      go(step ?? 0, true);
      redraw();
    }

    function counted() {
      state.N = Math.max(0, ...state.views.filter(Boolean).map((view) => view.run.N));
      slider.max = state.N;
    }

    function push(piece, i = 0) {
      if (piece.run) {
        const view = new RunView({ steps: [], tokens: {}, ...piece.run, ...piece.about, live: true }, `${prefix}-live${++made}-${i}`, tip);
        if (state.views[i]) watcher.unobserve(state.views[i].canvas);
        state.views[i] = view;
        runs.replaceChildren(...state.views.filter(Boolean).map((each) => each.element));
        watcher.observe(view.canvas);
        view.measure();
      } else if (!state.views[i]) return;
      else state.views[i].grow(piece);
      counted();
      go(state.follows ? state.N : state.t, true);
    }

    function moved(t) { // somebody chose a step; the newest one is followed on
      stop();
      go(t);
      state.follows = live && state.t >= state.N;
    }

    function go(t, force = false) {
      t = Math.max(0, Math.min(state.N, t));
      if (t === state.t && !force) return;
      state.t = t;
      slider.value = t;
      slider.setAttribute("aria-valuetext", `step ${t} of ${state.N}`);
      label.textContent = `${t} / ${state.N}`;
      state.views.forEach((view) => view?.go(t, state.guesses));
    }

    function stop() {
      if (state.playing) cancelAnimationFrame(state.playing);
      state.playing = null;
      icon.textContent = "▶";
      word.textContent = "Play";
    }

    function start() {
      state.follows = false;
      if (state.t >= state.N) go(0);
      let last = performance.now(), due = 0;
      const tick = (now) => {
        due += ((now - last) / 1000) * (Math.max(2.5, state.N / PLAY_SECONDS)) * state.speed; // at least 2.5 steps a second
        last = now;
        if (due >= 1) {
          go(state.t + Math.floor(due));
          due %= 1;
        }
        if (state.t >= state.N) return stop();
        state.playing = requestAnimationFrame(tick);
      };
      state.playing = requestAnimationFrame(tick);
      icon.textContent = "❚❚";
      word.textContent = "Pause";
    }
    function toggle() {
      if (state.playing) stop();
      else start();
    }

    function keys(event) {
      const on = event.target, inside = root.contains(on);
      if (event.ctrlKey || event.metaKey || event.altKey || (!inside && on !== document.body && !(live && on.matches("button")))) return;
      if (on.matches("textarea, [contenteditable], select, input:not([type=range])") || (on.matches("button") && /^( |Enter)$/.test(event.key))) return;
      if (on === slider && event.key !== " " && !/^g$/i.test(event.key)) return;
      const act = { " ": toggle, ArrowLeft: () => moved(state.t - 1), ArrowRight: () => moved(state.t + 1), Home: () => moved(0), End: () => moved(state.N),
        g: () => wish.click(), G: () => wish.click(), Escape: () => tip.hide() }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }

    const redraw = () => state.views.forEach((view) => view?.measure());
    const watcher = new ResizeObserver(redraw);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", redraw);
    document.addEventListener("keydown", keys);
    element.replaceChildren(root);
    choose(0);
    return {
      go, play: start, pause: stop, push,
      destroy() {
        stop();
        watcher.disconnect();
        theme.removeEventListener("change", redraw);
        document.removeEventListener("keydown", keys);
        element.replaceChildren();
      },
    };
  }

  return { mount, h };
})();
