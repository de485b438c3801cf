// The playground: a form, up to three decodes at once through the API, and the replay's viewer, which shows them as they go.
// What the form says is kept in the address's fragment, which no server sees. Text of a model only ever goes through textContent.
"use strict";
(() => {
  const MOST = 3, COMMON = ["L", "T", "temperature", "seed", "cache"];
  const { h } = UnmaskViewer;
  const $ = (id) => document.getElementById(id);
  const cards = [];
  let server = null, key = "", viewer = null, example = null, rounds = 0, filling = 0;

  // ---------------------------------------------------------------- the server

  class Gone extends Error {} // nothing answers any more

  // What the server said, and whether the same request may well succeed later.
  const failed = (said, status = 0) => Object.assign(new Error(said?.message ?? `The server answered with ${status}.`),
    { again: status >= 500 || status === 429 || ["server_error", "timeout_error", "rate_limit_error"].includes(said?.type) });

  async function call(path, body, signal) {
    const headers = { ...(body ? { "content-type": "application/json" } : {}), ...(key ? { authorization: `Bearer ${key}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
    } catch (error) {
      throw error.name === "AbortError" ? error : new Gone("The server does not answer.");
    }
    if (answer.status === 401) askForKey();
    if (!answer.ok) {
      throw failed((await answer.json().catch(() => null))?.error, answer.status);
    }
    return answer;
  }

  // The data of the events of a stream, which ends in [DONE] unless the server goes away.
  async function* events(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      let got;
      try {
        got = await reader.read();
      } catch (error) {
        throw error.name === "AbortError" ? error : new Gone("The server went away.");
      }
      if (got.done) throw new Gone("The server went away.");
      const parts = (rest + got.value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  }

  function askForKey() {
    $("keyform").hidden = false;
    $("key").focus();
  }

  // ---------------------------------------------------------------- a method and its settings

  class Card {
    constructor(name) {
      this.select = h("select", { "aria-label": "Method", onchange: () => this.choose(this.select.value) },
        ...Object.entries({ ...server.families, "": "Of this server" }).map(([family, title]) => {
          const of = server.methods.filter((method) => method.family === family);
          return of.length ? h("optgroup", { label: title }, ...of.map((method) => h("option", { value: method.name, disabled: !method.live,
            title: method.live ? method.words : "it changes its length while it decodes, which cannot be shown here" }, method.name))) : null;
        }));
      this.stopper = h("button", { type: "button", disabled: true, onclick: () => this.stop() }, "Stop");
      this.remover = h("button", { type: "button", "aria-label": "Remove this method", title: "Remove this method", onclick: () => remove(this) }, "×");
      this.words = h("p", { class: "pg-words" });
      this.curve = h("canvas", { class: "pg-curve", role: "img" });
      this.first = h("div", { class: "pg-settings" });
      this.others = h("div", { class: "pg-settings" });
      this.more = h("details", {}, h("summary", {}, "More settings"), this.others);
      this.wrong = h("p", { class: "pg-wrong", role: "alert" }); // about its decode
      this.unsound = h("p", { class: "pg-wrong", role: "alert" }); // about its settings
      this.again = h("button", { type: "button", hidden: true, onclick: () => decode(this) }, "Go on");
      this.element = h("section", { class: "pg-card", "aria-label": "A method" }, h("div", { class: "pg-line" }, this.select, this.stopper, this.remover),
        this.words, this.first, this.curve, this.more, this.unsound, this.wrong, this.again);
      this.choose(name);
    }

    choose(name) {
      this.method = server.methods.find((method) => method.name === name);
      this.select.value = name;
      this.words.textContent = `${this.method.words}.`;
      this.inputs = new Map();
      const rows = this.method.settings.map((setting) => [setting, this.row(setting)]);
      const known = (setting) => ["kappa", "beta", "gamma", "text", "at"].includes(setting.name);
      this.first.replaceChildren(...rows.filter(([setting]) => known(setting)).flatMap(([, row]) => row));
      this.others.replaceChildren(...rows.filter(([setting]) => !known(setting)).flatMap(([, row]) => row));
      this.more.hidden = !this.others.children.length;
      this.say("");
      this.weigh();
    }

    // A label and what sets it: a slider with a number beside it, a number, text, or a box to tick.
    row(setting) {
      const id = `s${Card.made = (Card.made ?? 0) + 1}`, { name, value, whole } = setting;
      const length = +$("L").value || server.length;
      const slides = name === "at" ? [-length, length - 1] : setting.slides;
      const text = typeof value === "string";
      if (typeof value === "boolean") {
        const box = h("input", { id, type: "checkbox", onchange: () => this.weigh() });
        box.checked = value;
        this.inputs.set(name, { setting, input: box });
        return [h("label", { for: id }, name), h("span", { class: "pg-wide" }, box)];
      }
      const input = h("input", { id, type: text ? "text" : "number", step: whole ? 1 : "any", class: slides ? null : "pg-wide", min: text ? null : setting.low, max: text ? null : setting.high,
        placeholder: text ? null : setting.none ? "none" : value, oninput: () => { if (slider) slider.value = input.value; this.weigh(); } });
      input.value = value ?? "";
      const slider = slides ? h("input", { type: "range", min: slides[0], max: slides[1], step: whole ? 1 : 0.05, "aria-label": `${name}, slider`,
        oninput: () => { input.value = slider.value; this.weigh(); } }) : null;
      if (slider) slider.value = value;
      this.inputs.set(name, { setting, input, slider });
      return [h("label", { for: id }, name), ...(slider ? [slider] : []), input];
    }

    // The settings that are not the method's own.
    get changed() {
      const found = {};
      for (const [name, { setting, input }] of this.inputs) {
        const value = typeof setting.value === "boolean" ? input.checked : typeof setting.value === "string" ? input.value
          : input.value.trim() === "" ? (setting.none ? null : setting.value) : Number(input.value);
        if (value !== setting.value) found[name] = value;
      }
      return found;
    }

    get(name) {
      const { input } = this.inputs.get(name);
      return input.type === "checkbox" ? String(input.checked) : input.value;
    }

    set(name, text) {
      const { input, slider } = this.inputs.get(name);
      if (input.type === "checkbox") input.checked = text === "true";
      else input.value = text;
      if (slider) slider.value = text;
    }

    get label() {
      return [this.method.name, ...Object.entries(this.changed).map(([name, value]) => `${name}=${value}`)].join(" ");
    }

    get asks() {
      return { method: this.method.name, settings: this.changed };
    }

    // How far the anchor damps each slot, by the server's own rule; the same call says whether the settings are sound.
    weigh() {
      this.weighing?.abort();
      clearTimeout(this.timer);
      this.timer = setTimeout(async () => {
        this.weighing = new AbortController();
        try {
          const answer = await call("/v1/unmask/weight", { unmask: this.asks, max_tokens: number("L") }, this.weighing.signal);
          this.draw(this.weighed = await answer.json());
          this.unsound.textContent = "";
        } catch (error) {
          if (error.name === "AbortError") return;
          this.unsound.textContent = error.message;
          this.curve.hidden = true;
        }
      }, 60);
    }

    draw({ weight, anchors, gamma, length }) {
      this.curve.hidden = !weight.length;
      if (!weight.length) return;
      const canvas = this.curve, style = getComputedStyle(canvas), ink = (name) => style.getPropertyValue(`--um-${name}`);
      const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
      Object.assign(canvas, { width: width * ratio, height: height * ratio });
      const pen = canvas.getContext("2d"), left = 22, low = height - 14, tall = low - 6, each = (width - left - 2) / length;
      pen.scale(ratio, ratio);
      pen.font = `10px ${style.fontFamily}`;
      pen.fillStyle = ink("anchor-band");
      for (const slot of anchors) pen.fillRect(left + slot * each, 6, each, tall);
      pen.fillStyle = ink("muted");
      pen.fillText("×1", 2, 12);
      pen.fillText("0", 2, low);
      pen.fillText("slot 0", left, height - 2);
      pen.textAlign = "right";
      pen.fillText(length - 1, width - 2, height - 2);
      for (const [progress, dash] of [[0, []], [0.5, [5, 3]], [0.9, [2, 3]]]) { // at the start, half way, near the end
        pen.strokeStyle = ink(progress ? "muted" : "score");
        pen.lineWidth = progress ? 1 : 2;
        pen.setLineDash(dash);
        pen.beginPath();
        weight.forEach((w, slot) => pen.lineTo(left + (slot + 0.5) * each, low - tall * (1 - w * (1 - progress) ** gamma)));
        pen.stroke();
      }
      const lowest = Math.max(...weight);
      canvas.setAttribute("aria-label", `What confidence is multiplied by at each slot: at the anchor ${(1 - lowest).toFixed(2)} at the start of decoding, ${(1 - lowest * 0.5 ** gamma).toFixed(2)} half way. Solid: the start; dashed: half way; dotted: 90 % decoded.`);
      canvas.title = "What the confidence of each slot is multiplied by. Solid: at the start; dashed: half way; dotted: when 90 % is decoded.";
    }

    say(text, again = false) {
      this.wrong.textContent = text;
      this.again.hidden = !again;
    }

    stop() {
      this.abort?.abort();
    }
  }

  function add(name) {
    const card = new Card(name);
    cards.push(card);
    $("cards").append(card.element);
    counted();
    return card;
  }

  function remove(card) {
    card.stop();
    cards.splice(cards.indexOf(card), 1);
    card.element.remove();
    counted();
    $("add").focus();
  }

  function counted() {
    $("add").disabled = cards.length >= MOST;
    for (const card of cards) card.remover.disabled = cards.length < 2;
    busy();
  }

  // ---------------------------------------------------------------- decoding

  const number = (id) => ($(id).value.trim() === "" ? null : Number($(id).value));

  function body(card) {
    const wanted = { stream: true, messages: [{ role: "user", content: $("prompt").value }], seed: number("seed") ?? 0,
      unmask: { ...card.asks, steps: number("T"), cache: $("cache").value || null, trace: true } };
    if (number("L") != null) wanted.max_tokens = number("L");
    if (number("temperature") != null) wanted.temperature = number("temperature");
    return wanted;
  }

  async function decodeAll() {
    if ($("decode").disabled) return;
    if (!$("prompt").value.trim()) return say("Ask something first."), $("prompt").focus();
    const bad = COMMON.find((id) => $(id).validity.badInput);
    if (bad) return say(`${bad} is not a number.`), $(bad).focus();
    const mine = ++rounds;
    cards.forEach((card, i) => { card.stop(); card.at = i; });
    viewer?.destroy();
    viewer = UnmaskViewer.mount($("viewer"), { format: "unmask-trace", version: 1, runs: [] }, { live: true });
    const begun = performance.now();
    say("Decoding …");
    const done = await Promise.all(cards.map((card) => decode(card)));
    if (mine !== rounds) return;
    if (done.every(Boolean)) say(`Done in ${((performance.now() - begun) / 1000).toFixed(1)} s.`);
    else say("");
  }

  // One method's decode, shown as it goes; true if it came to its end.
  async function decode(card) {
    const abort = (card.abort = new AbortController()), at = card.at;
    const run = (card.run = { steps: [], tokens: {}, prompt: $("prompt").value, method: card.label, model: server.model });
    const asked = example?.prompt === run.prompt ? example : null;
    if (asked) run.gold = asked.gold;
    card.done = false;
    card.say("");
    busy();
    try {
      const answer = await call("/v1/chat/completions", body(card), abort.signal);
      for await (const chunk of events(answer)) {
        if (chunk.error) throw failed(chunk.error);
        const piece = chunk.choices.length ? null : chunk.unmask;
        if (!piece || card.abort !== abort) continue;
        if (piece.end) delete piece.end.method;
        keep(run, piece);
        viewer.push(piece.run ? { ...piece, about: { method: run.method } } : piece, at);
      }
      card.done = run.steps.length > 0;
      if (asked) await graded(card, run, asked, abort).catch(() => {});
    } catch (error) {
      const stopped = abort.signal.aborted;
      abort.abort(); // whatever broke, nobody reads on
      if (card.abort === abort) {
        viewer?.push({ about: { live: false, stopped: stopped ? "stopped" : "broken off" } }, at);
        if (!stopped) card.say(error.message, error instanceof Gone || error.again);
      }
    }
    if (card.abort === abort) card.abort = null;
    busy();
    return card.done;
  }

  function keep(run, piece) { // the pieces of a run join to the run of a trace file
    const { tokens, ...more } = { ...piece.run, ...piece.end };
    Object.assign(run.tokens, tokens, piece.tokens);
    Object.assign(run, more);
    if (piece.step) run.steps.push(piece.step);
  }

  async function graded(card, run, asked, abort) {
    const { correct } = await (await call("/v1/unmask/grade", { example: asked.id, text: run.text }, abort.signal)).json();
    run.correct = correct;
    if (card.abort === abort) viewer.push({ about: { correct } }, card.at);
  }

  function busy() {
    const live = cards.filter((card) => card.abort);
    if (!live.length && [$("stop"), ...cards.map((card) => card.stopper)].includes(document.activeElement)) $("decode").focus();
    for (const card of cards) card.stopper.disabled = !card.abort;
    $("stop").disabled = !live.length;
    $("download").disabled = !cards.some((card) => card.done);
  }

  const say = (text) => ($("say").textContent = text);

  async function download() {
    const runs = cards.filter((card) => card.done).map((card) => card.run);
    try {
      const answer = await call("/v1/unmask/replay", { format: "unmask-trace", version: 1, runs });
      const link = h("a", { href: URL.createObjectURL(await answer.blob()), download: "replay.html" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      say("The replay is a page of its own; it opens without a server.");
    } catch (error) {
      say(error.message);
    }
  }

  // ---------------------------------------------------------------- the link

  function shared() { // prompt=...&L=96&m1=sacm&m1.kappa=12&m2=top-probability
    const words = new URLSearchParams();
    words.set("prompt", $("prompt").value);
    for (const id of COMMON) if ($(id).value !== "") words.set(id, $(id).value);
    cards.forEach((card, i) => {
      words.set(`m${i + 1}`, card.method.name);
      for (const [name, value] of Object.entries(card.changed)) words.set(`m${i + 1}.${name}`, value ?? "");
    });
    return words;
  }

  async function share() {
    history.replaceState(null, "", `#${shared()}`);
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is on the clipboard, and in the address bar.");
    } catch {
      say("The link is in the address bar.");
    }
  }

  // Fill the form from a link; what it asks for in vain is said, and the rest is used. Nothing is decoded before a click.
  async function opened() {
    const mine = ++filling, words = new URLSearchParams(location.hash.slice(1)), wrong = [];
    $("decode").disabled = true; // until the server has said what it takes
    viewer?.destroy();
    viewer = null;
    for (const card of cards.splice(0)) { card.stop(); card.element.remove(); }
    choose(server.examples.find((one) => (words.has("prompt") ? one.prompt === words.get("prompt") : one.id === server.example)));
    if (words.has("prompt")) $("prompt").value = words.get("prompt");
    for (const id of COMMON) {
      const given = words.get(id), plain = $(id).defaultValue ?? "";
      $(id).value = given ?? plain;
      if (given != null && ($(id).value !== given || !$(id).checkValidity())) { wrong.push(`${id} ${given}`); $(id).value = plain; }
    }
    for (const word of words.keys()) {
      const [slot] = word.split(".");
      if (!["prompt", ...COMMON].includes(word) && !(/^m[1-3]$/.test(slot) && words.has(slot))) wrong.push(word);
    }
    try {
      for (let i = 1; i <= MOST; i++) {
        const name = words.get(`m${i}`);
        const method = server.methods.find((one) => one.name === name && one.live);
        if (name != null && !method) wrong.push(`the method ${name}`);
        if (!method) continue;
        const card = add(name);
        let left = [...words].filter(([word]) => word.startsWith(`m${i}.`)).map(([word, value]) => [word.slice(3), value]);
        for (let before = -1; left.length && left.length !== before;) { // again and again, as one may make room for another
          before = left.length;
          const refused = [];
          for (const one of left) if (!(await suits(card, ...one))) refused.push(one);
          if (mine !== filling) return;
          left = refused;
        }
        wrong.push(...left.map(([setting, value]) => `${setting} ${value} of ${name}`));
      }
      say(wrong.length ? `This link asks for what is not here: ${wrong.join("; ")}. The rest is filled in.` : "");
    } catch (error) {
      if (mine === filling) say(error.message);
    } finally {
      if (mine === filling) {
        const here = (name) => server.methods.some((one) => one.name === name && one.live);
        if (!cards.length) (example?.methods ?? server.suggested).filter(here).forEach(add);
        $("decode").disabled = false;
        counted();
      }
    }
  }

  async function suits(card, name, value) { // would the server take it beside the others? then it is set
    if (!card.inputs.has(name)) return false;
    const before = card.get(name);
    card.set(name, value);
    try {
      if (card.get(name) === value) { // the input holds it as it stands
        await call("/v1/unmask/weight", { unmask: card.asks, max_tokens: number("L") });
        card.weigh();
        return true;
      }
    } catch (error) {
      if (error instanceof Gone) throw error;
    }
    card.set(name, before);
    card.weigh();
    return false;
  }

  // ---------------------------------------------------------------- the form

  function choose(one) { // an example, or a question of one's own
    example = one ?? null;
    $("example").value = one?.id ?? "";
    $("gold").textContent = one ? `Right answer: ${one.gold}` : "";
    if (one) $("prompt").value = one.prompt;
  }

  async function start() {
    const first = !server;
    try {
      server = await (await call("/v1/unmask")).json();
    } catch (error) {
      $("model").textContent = error.message;
      return;
    }
    $("keyform").hidden = true;
    if (!first) return cards.forEach((card) => card.weigh()); // another key; the form stays as it is
    $("model").textContent = `Watch ${server.model} fill in its answer, ${MOST} methods at a time.`;
    $("L").value = $("L").defaultValue = server.length;
    $("L").max = server.most;
    const tasks = [...new Set(server.examples.map((one) => one.task))];
    $("example").replaceChildren(h("option", { value: "" }, "a question of your own"), ...tasks.map((task) => h("optgroup", { label: task },
      ...server.examples.filter((one) => one.task === task).map((one) => h("option", { value: one.id }, `${one.id}: ${one.prompt.slice(0, 60)}`)))));
    $("example").closest("p").hidden = !server.examples.length;
    $("form").hidden = false;
    await opened();
  }

  $("form").addEventListener("submit", (event) => { event.preventDefault(); decodeAll(); });
  $("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); });
  $("prompt").addEventListener("input", () => {
    const same = server.examples.find((one) => one.prompt === $("prompt").value);
    example = same ?? null;
    $("example").value = same?.id ?? "";
    $("gold").textContent = same ? `Right answer: ${same.gold}` : "";
  });
  $("example").addEventListener("change", () => {
    const one = server.examples.find((each) => each.id === $("example").value);
    choose(one);
    if (one && !one.methods.some((name) => cards.some((card) => card.method.name === name))) { // answered first, or not: other methods
      for (const card of cards.splice(0)) { card.stop(); card.element.remove(); }
      one.methods.forEach(add);
    }
  });
  $("L").addEventListener("change", () => cards.forEach((card) => {
    const at = card.inputs.get("at");
    const length = +$("L").value || server.length;
    if (at?.slider) Object.assign(at.slider, { min: -length, max: length - 1, value: at.input.value });
    card.weigh();
  }));
  $("stop").addEventListener("click", () => cards.forEach((card) => card.stop()));
  $("add").addEventListener("click", () => {
    const used = cards.map((card) => card.method.name);
    const live = server.methods.filter((one) => one.live).map((one) => one.name);
    const next = [server.method, ...server.suggested, "sacm-support", ...live].find((name) => !used.includes(name) && live.includes(name));
    add(next).select.focus();
  });
  $("share").addEventListener("click", share);
  $("download").addEventListener("click", download);
  $("keyform").addEventListener("submit", (event) => { event.preventDefault(); key = $("key").value.trim().replace(/[^\x20-\x7e]/g, "?"); start(); });
  globalThis.addEventListener("hashchange", () => server && opened());
  const redraw = () => cards.forEach((card) => card.weighed && card.draw(card.weighed));
  globalThis.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  start();
})();
