// Draws the fabric at a moment: one canvas a policy, two side by side. The data is made by fabric_map.py.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const slider = document.getElementById("moment"), play = document.getElementById("play");
  const when = document.getElementById("when"), whose = document.getElementById("whose");
  const holder = document.getElementById("maps");
  const PAD = 4, GAP = 6, TEXT = 13, TALLEST = 760;
  const CELLS = [14, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2];
  let chosen = null; // the job under the pointer

  for (const run of data.runs) { // the first frames are written as differences
    let sum = 0;
    run.rows[5] = run.rows[5].map((step) => (sum += step));
  }

  // ---------------------------------------------------------------- where everything is drawn

  // Puts boxes from left to right, and into a next row where one is full; returns the size of all.
  function flow(boxes, width, gap) {
    let x = 0, y = 0, tall = 0, wide = 0;
    for (const box of boxes) {
      if (x && x + box.w > width) { x = 0; y += tall + gap; tall = 0; }
      box.x = x; box.y = y;
      x += box.w + gap; wide = Math.max(wide, box.x + box.w); tall = Math.max(tall, box.h);
    }
    return { w: wide, h: y + tall };
  }

  function leafBox(fabric, first, count, path, cell, width) {
    const between = cell > 4 ? 1 : 0, nodes = [];
    let area = 0, most = 0;
    for (let node = first; node < first + count; node++) {
      const w = fabric.gpus[node] * cell + 2;
      nodes.push({ node, w, h: cell + between });
      area += (w + 2) * (cell + between); most = Math.max(most, w);
    }
    const inner = count <= 40 ? most : Math.min(width - 2 * PAD, Math.max(most, Math.sqrt(area * 1.8)));
    const size = flow(nodes, inner, count <= 40 ? 0 : 2);
    const name = path.length ? path[path.length - 1] : "";
    const title = cell >= 6 && name && size.w > 6 * name.length ? TEXT : 0;
    return { nodes, name, title, w: size.w + 2 * PAD, h: size.h + 2 * PAD + title };
  }

  function arrange(fabric, width, cell) {
    const spines = new Map();
    let first = 0;
    for (const [path, count] of fabric.paths) {
      const key = path.slice(0, -1).join(" / ");
      if (!spines.has(key)) spines.set(key, []);
      spines.get(key).push(leafBox(fabric, first, count, path, cell, width - 2 * PAD));
      first += count;
    }
    const boxes = [];
    for (const [name, leaves] of spines) {
      const size = flow(leaves, width - 2 * PAD, GAP);
      const title = name ? TEXT + 3 : 0;
      boxes.push({ name, leaves, title, w: Math.max(size.w, 6.5 * name.length) + 2 * PAD, h: size.h + 2 * PAD + title });
    }
    const size = flow(boxes, width, GAP);
    return { boxes, cell, height: Math.max(size.h, 20) };
  }

  function layout(fabric, width) {
    let found = null;
    for (const cell of CELLS) {
      found = arrange(fabric, width, cell);
      if (found.height <= TALLEST) break;
    }
    found.at = new Array(fabric.nodes.length);
    for (const spine of found.boxes)
      for (const leaf of spine.leaves)
        for (const node of leaf.nodes)
          found.at[node.node] = [
            spine.x + PAD + leaf.x + PAD + node.x,
            spine.y + PAD + spine.title + leaf.y + PAD + leaf.title + node.y,
          ];
    return found;
  }

  // ---------------------------------------------------------------- colours

  const dark = matchMedia("(prefers-color-scheme: dark)");
  let ink = {};
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "soft", "rule", "frame", "free", "before", "stripe"])
      ink[name] = style.getPropertyValue("--" + name).trim();
    const printed = matchMedia("print").matches;
    ink.dark = dark.matches && !printed;
  }
  function colour(job, gang) {
    if (job < 0) return ink.before;
    const hue = (job * 137.508) % 360, tone = (job * 7) % 3;
    if (!gang) return `hsl(${hue} 26% ${ink.dark ? 44 + 5 * tone : 76 - 5 * tone}%)`;
    return `hsl(${hue} 72% ${ink.dark ? 54 + 6 * tone : 40 + 7 * tone}%)`;
  }

  // ---------------------------------------------------------------- one map

  function panel(start) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const canvas = document.createElement("canvas"), told = document.createElement("div");
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Policy");
    data.runs.forEach((run, at) => select.add(new Option(run.name, at, at === start, at === start)));
    if (data.runs.length > 1) figure.append(select);
    else { const only = document.createElement("strong"); only.textContent = data.runs[0].name; figure.append(only); }
    caption.append(told);
    figure.append(caption, canvas);
    holder.append(figure);
    const self = { canvas, select, told, plan: null, width: 0, cells: null };
    select.addEventListener("change", () => { self.plan = null; draw(); });
    const point = (event) => pointed(self, event);
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", () => { chosen = null; whose.textContent = "\u00a0"; draw(); });
    return self;
  }

  function prepare(self) {
    const run = data.runs[+self.select.value || 0], fabric = data.fabrics[run.fabric];
    const width = self.canvas.parentElement.clientWidth;
    if (self.plan && self.width === width) return { run, fabric };
    self.width = width;
    self.plan = layout(fabric, width);
    const sharp = window.devicePixelRatio || 1;
    self.canvas.width = Math.round(width * sharp);
    self.canvas.height = Math.round(self.plan.height * sharp);
    self.canvas.style.height = self.plan.height + "px";
    self.base = [0];
    for (const gpus of fabric.gpus) self.base.push(self.base[self.base.length - 1] + gpus);
    return { run, fabric };
  }

  function skeleton(self, fabric, pen) {
    const { boxes, cell, at } = self.plan, shut = new Set(fabric.cordoned);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    for (const spine of boxes) {
      if (spine.name) {
        pen.fillStyle = ink.stripe;
        pen.fillRect(spine.x, spine.y, spine.w, spine.h);
        pen.fillStyle = ink.ink;
        pen.fillText(spine.name, spine.x + PAD, spine.y + 3);
      }
      for (const leaf of spine.leaves) {
        const x = spine.x + PAD + leaf.x, y = spine.y + PAD + spine.title + leaf.y;
        pen.strokeStyle = ink.frame;
        pen.strokeRect(x + 0.5, y + 0.5, leaf.w - 1, leaf.h - 1);
        if (leaf.title) { pen.fillStyle = ink.soft; pen.fillText(leaf.name, x + PAD, y + 2); }
      }
    }
    const size = cell > 4 ? cell - 1 : cell > 2 ? cell - 0.5 : cell;
    fabric.gpus.forEach((gpus, node) => {
      const [x, y] = at[node];
      pen.fillStyle = ink.free;
      for (let gpu = 0; gpu < gpus; gpu++) pen.fillRect(x + gpu * cell, y, size, size);
      if (!shut.has(node)) return;
      pen.strokeStyle = ink.soft;
      pen.beginPath();
      for (let gpu = 0; gpu < gpus; gpu++) { pen.moveTo(x + gpu * cell, y + size); pen.lineTo(x + gpu * cell + size, y); }
      pen.stroke();
    });
    return size;
  }

  function paint(self) {
    const { run, fabric } = prepare(self), frame = +slider.value;
    const pen = self.canvas.getContext("2d"), sharp = window.devicePixelRatio || 1;
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, self.width, self.plan.height);
    pen.lineWidth = 1;
    const size = skeleton(self, fabric, pen), cell = self.plan.cell;
    const jobs = data.workloads[run.jobs], [job, node, first, many, milli, begin, end] = run.rows;
    const filled = new Float32Array(self.base[self.base.length - 1]);
    self.holders = new Map();
    const there = new Set();
    let held = 0, gangs = 0, single = 0;
    for (let row = 0; row < job.length; row++) {
      if (begin[row] > frame) break;
      if (end[row] <= frame) continue;
      const who = job[row], gang = who >= 0 && jobs.pods[who] > 1, share = milli[row] / 1000;
      held += many[row] * share;
      if (who >= 0 && !there.has(who)) { there.add(who); gang ? gangs++ : single++; }
      pen.fillStyle = colour(who, gang);
      pen.globalAlpha = chosen === null || chosen === who ? 1 : 0.18;
      const [x, y] = self.plan.at[node[row]];
      for (let gpu = first[row]; gpu < first[row] + many[row]; gpu++) {
        const at = self.base[node[row]] + gpu, low = filled[at];
        pen.fillRect(x + gpu * cell, y + size * (1 - Math.min(1, low + share)), size, size * share);
        filled[at] = low + share;
        if (!self.holders.has(at)) self.holders.set(at, []);
        self.holders.get(at).push(who);
      }
    }
    pen.globalAlpha = 1;
    const all = self.base[self.base.length - 1];
    const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
    self.told.textContent =
      `${number(held)} of ${number(all)} GPUs in use (${all ? (100 * held / all).toFixed(1) : 0} %), ` +
      `${number(gangs)} ${gangs === 1 ? "gang" : "gangs"}, ${number(single)} single`;
  }

  // ---------------------------------------------------------------- the moment

  function readable(run) {
    const value = data.frames > 1 ? run.end * slider.value / (data.frames - 1) : 0;
    if (data.fill) return `arrival ${Math.floor(value).toLocaleString("en")}`;
    const whole = Math.round(value), days = Math.floor(whole / 86400);
    const clock = new Date((whole % 86400) * 1000).toISOString().slice(11, 19);
    return days || run.end >= 86400 ? `day ${days}, ${clock}` : clock;
  }
  function draw() {
    readColours();
    panels.forEach(paint);
    when.textContent = readable(data.runs[+panels[0].select.value || 0]);
  }
  function pointed(self, event) {
    const box = self.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const run = data.runs[+self.select.value || 0], fabric = data.fabrics[run.fabric], cell = self.plan.cell;
    const node = self.plan.at.findIndex(
      (at, one) => x >= at[0] && x < at[0] + fabric.gpus[one] * cell && y >= at[1] && y < at[1] + cell);
    const before = chosen;
    chosen = null;
    whose.textContent = "\u00a0";
    if (node >= 0) {
      const gpu = Math.floor((x - self.plan.at[node][0]) / cell);
      const holders = self.holders.get(self.base[node] + gpu) || [], jobs = data.workloads[run.jobs];
      const names = holders.map((who) => who < 0 ? "what ran before" :
        jobs.pods[who] > 1 ? `${jobs.names[who]} (gang of ${jobs.pods[who]})` : jobs.names[who]);
      const shut = fabric.cordoned.includes(node) ? ", cordoned" : "";
      whose.textContent = `${fabric.nodes[node]}${shut}, GPU ${gpu}: ${names.join(", ") || "free"}`;
      if (holders.length) chosen = holders[0];
    }
    if (chosen !== before) draw();
  }

  let timer = null;
  function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (+slider.value >= data.frames - 1) slider.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (+slider.value >= data.frames - 1) { stop(); return; }
      slider.value = +slider.value + 1;
      draw();
    }, Math.max(60, 20000 / data.frames));
  });
  slider.addEventListener("input", draw);
  addEventListener("resize", draw);
  dark.addEventListener("change", draw);
  matchMedia("print").addEventListener("change", draw);

  // It begins at the fullest moment of the first run; a fill is fullest at its end.
  function fullest(run) {
    const change = new Float64Array(data.frames + 1), [, , , many, milli, begin, end] = run.rows;
    for (let row = 0; row < many.length; row++) {
      change[begin[row]] += many[row] * milli[row];
      change[end[row]] -= many[row] * milli[row];
    }
    let sum = 0, most = -1, found = 0;
    for (let frame = 0; frame < data.frames; frame++) {
      sum += change[frame];
      if (sum > most) { most = sum; found = frame; }
    }
    return found;
  }
  const panels = data.runs.slice(0, 2).map((_, at) => panel(at));
  slider.value = fullest(data.runs[0]);
  draw();
})();
