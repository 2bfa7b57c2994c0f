// Draws the module tree on demand and filters it. Everything shown is text set as text:
// names and reasons come from models and compilers. Errors come formatted.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("graph-data").textContent);
  const tree = document.getElementById("tree");
  const ID = 0, OP = 1, SRC = 2, PLACE = 3, REGION = 4, COMPUTE = 5, VERDICT = 6, ERROR = 7, READS = 8, TRIED = 9, WHY = 10;
  const FEW = 300; // what a filter lets through is unfolded up to this many nodes
  const target = tree.dataset.target, backend = tree.dataset.backend;

  const say = (count) => count.toLocaleString("en");
  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Index: number by id, chain of modules above each node, and what a search looks at.
  const byId = new Map(), above = [], text = [];
  const index = (module, chain) => {
    const here = chain.concat([module]);
    for (const kid of module.kids) {
      if (typeof kid !== "number") { index(kid, here); continue; }
      const node = data.nodes[kid];
      byId.set(node[ID], kid);
      above[kid] = here;
      text[kid] = [node[ID], data.ops[node[OP]], module.path, node[REGION], node[VERDICT], data.sources[node[SRC]][1]].join("\n").toLowerCase();
    }
  };
  index(data.tree, []);

  // Which nodes a filter lets through, and how many in each module. No filter: all.
  const state = { words: [], place: "", compute: false };
  const filtered = () => state.words.length > 0 || state.place !== "" || state.compute;
  const passes = (number) => {
    const node = data.nodes[number];
    return (!state.place || node[PLACE] === state.place) && (!state.compute || node[COMPUTE] === 1) &&
      state.words.every((word) => word.startsWith("region:") ? node[REGION].toLowerCase() === word.slice(7) : text[number].includes(word));
  };
  let through = new Set(), inModule = new Map();
  const count = (module) => {
    let found = 0;
    for (const kid of module.kids) {
      if (typeof kid !== "number") found += count(kid);
      else if (passes(kid)) { through.add(kid); found += 1; }
    }
    inModule.set(module, found);
    return found;
  };

  const bar = (on, total) => {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("viewBox", "0 0 100 8");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    for (const [name, width] of [["track", 100], [on < total ? "fill part" : "fill", total ? 100 * on / total : 0]]) {
      const rect = document.createElementNS(space, "rect");
      rect.setAttribute("class", name);
      rect.setAttribute("width", width);
      rect.setAttribute("height", 8);
      svg.append(rect);
    }
    return svg;
  };

  const row = (depth, title, extra, cells) => {
    const summary = make("summary", "row");
    summary.style.setProperty("--depth", depth);
    const name = make("span", "name");
    name.append(make("b", "", title));
    if (extra) name.append(make("span", "aten", extra));
    summary.append(name, ...cells);
    return summary;
  };

  const drawnAs = new Map(); // module or node number → its details element
  const lazily = (details, fill) => {
    let done = false;
    const once = () => { if (!done) { done = true; fill(); } };
    details.addEventListener("toggle", () => { if (details.open) once(); });
    details.unfold = () => { once(); details.open = true; };
  };

  const drawModule = (module, depth) => {
    const details = make("details", "module");
    const badge = make("span", "badge");
    badge.title = say(module.on) + " of " + say(module.total) + " nodes on " + target;
    if (module.total) badge.append(bar(module.on, module.total), make("span", "", say(module.on) + "/" + say(module.total)));
    else badge.append(make("span", "small", "folded"));
    const found = inModule.get(module);
    const extra = filtered() ? say(found) + (found === 1 ? " match" : " matches") : "";
    const verdict = module.bad ? make("span", "wrong", say(module.bad) + " not right") : make("span", "");
    const worst = make("span", "err", module.worst);
    worst.title = "largest error inside";
    details.append(row(depth, module.name || "model", extra, [badge, make("span", "region"), verdict, worst, make("span", "src")]));
    lazily(details, () => details.append(...drawKids(module, depth + 1)));
    drawnAs.set(module, details);
    return details;
  };

  const drawNode = (number, depth, path) => {
    const node = data.nodes[number];
    const details = make("details", "node");
    const where = make("span", "where p-" + node[PLACE], node[PLACE] === "target" ? target : node[PLACE]);
    if (node[PLACE] === "target") where.title = backend + " on " + target;
    const verdict = make("span", "");
    if (node[VERDICT]) verdict.append(make("span", "chip v-" + node[VERDICT], node[VERDICT]));
    const source = make("span", "src", data.sources[node[SRC]][0]);
    source.title = data.sources[node[SRC]][1];
    const short = path && node[ID].startsWith(path + ".") ? node[ID].slice(path.length + 1) : node[ID];
    details.append(row(depth, short, data.ops[node[OP]], [where, make("span", "region", node[REGION]), verdict, make("span", "err", node[ERROR]), source]));
    lazily(details, () => details.append(inside(node, depth)));
    drawnAs.set(number, details);
    return details;
  };

  const inside = (node, depth) => {
    const box = make("div", "inside"), list = make("dl");
    box.style.setProperty("--depth", depth);
    const tell = (label, ...values) => {
      const cell = make("dd");
      cell.append(...values);
      list.append(make("dt", "", label), cell);
    };
    const link = (label, act) => {
      const button = make("button", "link", label);
      button.type = "button";
      button.addEventListener("click", act);
      return button;
    };
    tell("Node", node[ID]);
    tell("Operator", data.ops[node[OP]] + (node[COMPUTE] ? " (compute node)" : ""));
    tell("Runs on", node[PLACE] === "target" ? backend + " on " + target : node[PLACE] === "folded" ? "nothing: folded into a constant" : "the source");
    if (node[REGION]) tell("Region", link(node[REGION], () => search("region:" + node[REGION])));
    for (const [where, verdict, words] of data.histories[node[TRIED]]) {
      tell("Tried", where + " ", make("span", "chip v-" + verdict, verdict), " " + words);
    }
    if (node[WHY]) tell("Why it stays", node[WHY]);
    tell("Source", data.sources[node[SRC]][1]);
    const reads = [];
    for (const read of node[READS]) {
      if (reads.length) reads.push(", ");
      reads.push(typeof read === "number" ? link(data.nodes[read][ID], () => reveal(read)) : String(read));
    }
    if (reads.length) tell("Reads", ...reads);
    box.append(list);
    return box;
  };

  const drawKids = (module, depth) => {
    const drawn = [];
    for (const kid of module.kids) {
      if (typeof kid === "number") { if (through.has(kid)) drawn.push(drawNode(kid, depth, module.path)); }
      else if (inModule.get(kid)) drawn.push(drawModule(kid, depth));
    }
    return drawn;
  };

  const modulesIn = (module) => module.kids.filter((kid) => typeof kid !== "number");
  const unfold = (module) => {
    for (const kid of modulesIn(module)) {
      const details = drawnAs.get(kid);
      if (!details) continue;
      details.unfold();
      unfold(kid);
    }
  };

  const matches = document.getElementById("matches");
  const draw = () => {
    through = new Set(); inModule = new Map(); drawnAs.clear();
    const found = count(data.tree);
    tree.replaceChildren(...drawKids(data.tree, 0));
    if (filtered()) {
      matches.textContent = found ? say(found) + " of " + say(data.nodes.length) + " nodes" : "No node matches.";
      if (found <= FEW) unfold(data.tree);
    } else {
      matches.textContent = "";
      // A lone module at the top says nothing closed.
      if (drawnAs.size === 1) for (const details of drawnAs.values()) details.unfold();
    }
  };

  const box = document.getElementById("search"), compute = document.getElementById("compute");
  const places = document.querySelectorAll('#tools input[name="place"]');
  const read = () => {
    state.words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    state.place = document.querySelector('#tools input[name="place"]:checked').value;
    state.compute = compute.checked;
    draw();
  };
  const clear = () => { box.value = ""; compute.checked = false; places[0].checked = true; };
  const search = (words) => { clear(); box.value = words; read(); box.focus(); };
  const reveal = (number) => {
    if (filtered()) { clear(); read(); }
    for (const module of above[number]) { const details = drawnAs.get(module); if (details) details.unfold(); }
    document.querySelectorAll(".shown").forEach((old) => old.classList.remove("shown"));
    const details = drawnAs.get(number);
    details.unfold();
    details.classList.add("shown");
    details.scrollIntoView({ block: "center" });
    details.firstChild.focus({ preventScroll: true });
  };

  let waiting = 0;
  box.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(read, 120); });
  compute.addEventListener("change", read);
  places.forEach((input) => input.addEventListener("change", read));
  document.getElementById("tools").addEventListener("submit", (event) => { event.preventDefault(); read(); });
  document.getElementById("expand").addEventListener("click", () => unfold(data.tree));
  document.getElementById("collapse").addEventListener("click", () => { for (const details of drawnAs.values()) details.open = false; });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-node]");
    if (link && byId.has(link.dataset.node)) { event.preventDefault(); reveal(byId.get(link.dataset.node)); }
  });
  document.getElementById("tools").hidden = false;
  read();

  // On paper nothing can be opened: open the findings, and put them back afterwards.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("#findings details:not([open]), #blocked details:not([open]), .steps-table:not([open])")];
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => { opened.forEach((details) => { details.open = false; }); });
})();
