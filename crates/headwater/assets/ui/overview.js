// The cluster at a glance: nodes filling up, rollouts, events, counts.
import { h, fill, text, num, rate, age, css, sized, spark, calm, clockTime } from './dom.js';
import { GLYPH, glyph, drawGlyph, isReady, phaseOf, statusText } from './glyph.js';
import { live, on, core, inScope, kind, kindFor } from './live.js';
import { go, hrefOf } from './route.js';

const SUFFIX = { m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 1024, Mi: 1024 ** 2, Gi: 1024 ** 3, Ti: 1024 ** 4 };
const quantity = (q) => { const m = /^([\d.]+)([A-Za-z]*)$/.exec(String(q ?? '')); return m ? m[1] * (SUFFIX[m[2]] ?? 1) : 0; };
const FULL = 24, SMALL = 200; // with more nodes than these: smaller cells, then bars

export function overview() {
  const stop = [];
  let colors = {}, lit = null, frame = 0;
  const readColors = () => { for (const p of Object.keys(GLYPH)) colors[p] = css('--ph-' + p); colors.slot = css('--slot'); colors.ground = css('--surface'); colors.accent = css('--accent'); colors.ink = css('--ink'); };

  // -- the line of figures
  const figs = [['pods', 'Pods ready'], ['deployments', 'Deployments available'], ['nodes', 'Nodes ready'], ['warn', 'Warnings, 5 min'], ['rate', 'Changes per second']].map(([id, label]) => {
    const f = { id, big: h('b'), of: h('span', { class: 'of' }), canvas: id === 'rate' ? h('canvas', { class: 'figspark', 'aria-hidden': 'true' }) : null, note: h('span', { class: 'note' }) };
    f.el = h('div', { class: 'fig' }, h('span', { class: 'figlabel' }, label), h('span', { class: 'figrow' }, f.big, f.of, f.canvas, f.note));
    return f;
  });
  // -- nodes
  const nodesEl = h('div', { class: 'nodes' }), cards = new Map();
  const legend = h('ul', { class: 'legend', 'aria-label': 'Pod phases' });
  const legendN = {};
  for (const p of Object.keys(GLYPH)) { const n = h('b'); legendN[p] = n; legend.append(h('li', {}, glyph(p), GLYPH[p].name, n)); }
  const tip = h('div', { class: 'tip', role: 'status', hidden: true });

  function card(name) {
    const c = { name, slots: [], stale: new Set(), dirty: true, use: { n: 0, cpu: 0, mem: 0, bad: 0 }, canvas: h('canvas', { class: 'pods' }), sub: h('span', { class: 'sub' }), n: h('span', { class: 'tnum' }), cpu: h('i'), mem: h('i'), cpuT: h('span', { class: 'tnum' }), memT: h('span', { class: 'tnum' }), state: h('span', { class: 'nstate' }) };
    c.el = h('a', { class: 'node', href: '#/t/pods?' + encodeURIComponent(name) },
      h('div', { class: 'nhead' }, c.state, h('b', {}, name), c.sub, h('span', { class: 'grow' }), c.n),
      c.canvas,
      h('div', { class: 'meters' }, h('span', { class: 'meter' }, 'CPU', h('span', { class: 'track' }, c.cpu), c.cpuT), h('span', { class: 'meter' }, 'Memory', h('span', { class: 'track' }, c.mem), c.memT)));
    c.canvas.addEventListener('mousemove', (e) => hover(c, e));
    c.canvas.addEventListener('mouseleave', () => { tip.hidden = true; c.over = null; c.dirty = true; painting.add(c); kick(); });
    c.canvas.addEventListener('click', (e) => { const s = hit(c, e); if (s) { e.preventDefault(); go(hrefOf('pods', s.key)); } });
    cards.set(name, c); nodesEl.append(c.el);
    return c;
  }
  let CELL = 12, BOX = 10, bars = false;
  const cols = (c) => Math.max(8, Math.floor((c.w + 2) / CELL));
  function hit(c, e) {
    const r = c.canvas.getBoundingClientRect(), x = Math.floor((e.clientX - r.left) / CELL), y = Math.floor((e.clientY - r.top) / CELL);
    return x < cols(c) ? c.slots[y * cols(c) + x] : null;
  }
  function hover(c, e) {
    const s = hit(c, e); if (c.over !== s) { c.over = s; c.dirty = true; painting.add(c); kick(); }
    if (!s) { tip.hidden = true; return; }
    fill(tip, h('b', {}, s.obj.metadata.name), h('span', {}, glyph(phaseOf(s.obj)), statusText(s.obj), ' · ', s.obj.metadata.namespace, ' · ', age(Date.now() - Date.parse(s.obj.metadata.creationTimestamp))));
    tip.hidden = false;
    tip.style.left = Math.min(e.clientX + 12, innerWidth - tip.offsetWidth - 8) + 'px'; tip.style.top = e.clientY + 16 + 'px';
  }
  const available = (d) => { const c = (d.status.conditions || []).find((x) => x.type === 'Available'); return c ? c.status === 'True' : (d.status.availableReplicas || 0) >= d.spec.replicas; };
  // A pod keeps the square that it was given. What it adds to its node and to the figures is kept with the
  // square, so that a change of one pod costs one pod.
  const denied = (id) => !!kind(id === 'warn' ? 'events' : id)?.denied;
  const squares = new Map(), touched = new Set();
  let tally = {}, ready = 0, every = 0;
  function add(s, sign) {
    if (s.counted) { tally[s.phase] += sign; if (s.phase !== 'succeeded' && s.phase !== 'terminating') { every += sign; if (s.phase === 'running') ready += sign; } }
    if (!s.c) return;
    const u = s.c.use;
    u.n += sign; u.cpu += sign * s.cpu; u.mem += sign * s.mem; if (s.phase === 'failed') u.bad += sign;
    touched.add(s.c); s.c.stale.add(s.i);
  }
  function leave(s) { if (s.c) { s.c.slots[s.i] = null; s.c = null; } }
  function put(key, o, t) {
    let s = squares.get(key);
    if (s?.summed) add(s, -1);
    if (!o) { if (s) leave(s); squares.delete(key); return; }
    const c = cards.get(o.spec.nodeName) || null, p = phaseOf(o);
    if (!s) squares.set(key, (s = { key, c: null, born: 0 }));
    if (s.c !== c) {
      leave(s);
      if (c) { let i = c.slots.findIndex((x) => !x); if (i < 0) { i = c.slots.length; if (i >= c.most) c.dirty = true; } c.slots[i] = s; s.c = c; s.i = i; s.born = c.ready ? t : 0; }
    }
    if (s.phase !== p) { if (s.phase) s.turned = t; s.phase = p; }
    s.obj = o; s.counted = inScope(o); s.cpu = s.mem = 0;
    if (p !== 'succeeded') for (const q of o.spec.containers) { const r = q.resources?.requests; if (r) { s.cpu += quantity(r.cpu); s.mem += quantity(r.memory); } }
    add(s, 1); s.summed = true;
  }
  // Everything again: the nodes or the namespace are others.
  function arrange() {
    const nodes = core('nodes'), t = performance.now();
    const names = [...nodes.keys()].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
    const small = names.length > FULL;
    bars = names.length > SMALL; CELL = small ? 8 : 12; BOX = small ? 6 : 10;
    nodesEl.classList.toggle('many', small); nodesEl.classList.toggle('bars', bars);
    for (const [n, c] of cards) if (!nodes.has(n)) { c.slots.forEach((s) => { if (s) s.c = null; }); c.el.remove(); cards.delete(n); painting.delete(c); touched.delete(c); }
    let grown = false;
    for (const n of names) if (!cards.get(n)) { card(n); grown = true; }
    if (grown) nodesEl.append(...names.map((n) => cards.get(n).el));
    none.hidden = names.length > 0; text(none, denied('nodes') ? 'You may not list nodes.' : 'No nodes.');
    tally = Object.fromEntries(Object.keys(GLYPH).map((p) => [p, 0])); ready = every = 0;
    for (const c of cards.values()) { c.use = { n: 0, cpu: 0, mem: 0, bad: 0 }; touched.add(c); }
    const pods = core('pods');
    for (const [key, s] of squares) { s.summed = false; if (!pods.has(key)) { leave(s); squares.delete(key); } }
    for (const [key, o] of pods) put(key, o, t);
    for (const c of cards.values()) c.ready = true;
    resized = true;
  }
  function show() {
    const nodes = core('nodes');
    for (const c of touched) {
      const n = nodes.get(c.name), up = !!n && isReady(n), can = n?.status.allocatable || {}, room = +can.pods || 110;
      if (c.room !== room) { c.room = room; c.dirty = true; }
      text(c.sub, n?.metadata.labels?.['topology.kubernetes.io/zone'] || '');
      text(c.n, `${c.use.n} of ${room}`);
      c.el.classList.toggle('down', !up);
      if (c.up !== up) { c.up = up; fill(c.state, glyph(up ? 'running' : 'failed'), up ? null : h('span', { class: 'tx-failed' }, 'Not ready')); }
      const part = (used, all) => { const whole = quantity(all); return whole ? Math.round(Math.min(100, (used / whole) * 100)) + '%' : '0%'; };
      const pc = part(c.use.cpu, can.cpu), pm = part(c.use.mem, can.memory);
      if (c.cpu.style.width !== pc) c.cpu.style.width = pc;
      if (c.mem.style.width !== pm) c.mem.style.width = pm;
      text(c.cpuT, pc); text(c.memT, pm);
      const label = `${c.name}, ${up ? 'ready' : 'not ready'}, ${c.use.n} of ${room} pods${c.use.bad ? ', ' + c.use.bad + ' failing' : ''}`;
      if (c.label !== label) c.el.setAttribute('aria-label', (c.label = label));
      painting.add(c);
    }
    touched.clear();
    for (const p in tally) { text(legendN[p], tally[p]); legendN[p].parentNode.classList.toggle('none', !tally[p]); }
    set('pods', num(ready), '/ ' + num(every), tally.failed > 0);
    text(figs[0].note, tally.failed ? `${num(tally.failed)} failing` : '');
    kick();
  }
  const set = (id, big, of, bad) => { const f = figs.find((x) => x.id === id), no = denied(id); text(f.big, no ? '–' : big); text(f.of, no ? 'no access' : of || ''); f.el.classList.toggle('bad', !no && !!bad); };
  function figures() {
    const deps = [...core('deployments').values()].filter(inScope), short = deps.filter((d) => !available(d)).map((d) => d.metadata.name);
    const nodes = [...core('nodes').values()], down = nodes.filter((n) => !isReady(n)).map((n) => n.metadata.name);
    let warn = 0;
    const since = Date.now() - 300000;
    for (const e of core('events').values()) if (e.type === 'Warning' && inScope(e) && Date.parse(e.lastTimestamp) > since) warn += e.count;
    set('deployments', deps.length - short.length, '/ ' + deps.length, short.length); set('nodes', nodes.length - down.length, '/ ' + nodes.length, down.length); set('warn', num(warn), '', warn > 0);
    text(figs[1].note, short.length > 1 ? `${short.length} short` : short[0] || '');
    text(figs[2].note, down.length ? (down.length > 1 ? `${down.length} not ready` : `${down[0]} is not ready`) : '');
  }
  // Changed pods and nodes, by key.
  function place(pods, nodes) {
    const t = performance.now();
    let others = false;
    for (const n of nodes || []) { const c = cards.get(n); if (!c !== !core('nodes').has(n)) others = true; else if (c) touched.add(c); }
    if (others) arrange(); else for (const k of pods || []) put(k, core('pods').get(k), t);
    show();
  }
  const painting = new Set(); // cards to paint in the next frame
  let resized = true;
  function cell(c, g, i, n, t, still) {
    const x = (i % n) * CELL, y = Math.floor(i / n) * CELL, s = c.slots[i];
    if (!s) { g.fillStyle = colors.slot; g.beginPath(); g.roundRect(x + BOX / 2 - 1.5, y + BOX / 2 - 1.5, 3, 3, 1.5); g.fill(); return false; }
    const off = (lit && lit !== owner(s.obj)) || !inScope(s.obj);
    const bornFor = t - s.born, k = still || bornFor > 260 ? 1 : 0.4 + 0.6 * (1 - (1 - bornFor / 260) ** 3);
    let busy = k < 1;
    g.globalAlpha = off ? 0.16 : 1;
    drawGlyph(g, s.phase, x + (BOX * (1 - k)) / 2, y + (BOX * (1 - k)) / 2, BOX * k, colors[s.phase], colors.ground);
    if (s.turned && !still) {
      const q = (t - s.turned) / 700;
      if (q < 1) { busy = true; g.globalAlpha = (1 - q) * 0.7 * (off ? 0.2 : 1); g.strokeStyle = colors[s.phase]; g.lineWidth = 1.2; g.beginPath(); g.roundRect(x - q * 2.5, y - q * 2.5, BOX + q * 5, BOX + q * 5, 3); g.stroke(); }
    }
    g.globalAlpha = 1;
    if (c.over === s) { g.strokeStyle = colors.ink; g.lineWidth = 1.5; g.beginPath(); g.roundRect(x - 1, y - 1, BOX + 2, BOX + 2, 3); g.stroke(); }
    return busy;
  }
  // Returns whether something still moves. Small squares do not, so only those that changed are painted.
  function paint(c, t = performance.now(), still = calm()) {
    if (bars) return false;
    const most = Math.max(CELL === 12 ? Math.min(c.room || 110, 110) : 0, c.slots.length), n = cols(c);
    still ||= CELL < 12;
    if (still && !c.dirty && !c.over && c.g && most === c.most) {
      for (const i of c.stale) { c.g.clearRect((i % n) * CELL, Math.floor(i / n) * CELL, CELL, CELL); cell(c, c.g, i, n, t, true); }
      c.stale.clear();
      return false;
    }
    c.g = sized(c.canvas, c.w, Math.max(1, Math.ceil(most / n)) * CELL - 2);
    c.most = most; c.dirty = false; c.stale.clear();
    let busy = false;
    for (let i = 0; i < most; i++) busy = cell(c, c.g, i, n, t, still) || busy;
    return busy;
  }
  function repaint() { for (const c of cards.values()) { c.dirty = true; painting.add(c); } kick(); }
  function kick() { if (!frame) frame = requestAnimationFrame(draw); }
  function draw() {
    frame = 0;
    if (resized) { resized = false; for (const c of cards.values()) { const w = c.el.clientWidth - 24; c.dirty = true; c.w = w; painting.add(c); } }
    const t = performance.now(), still = calm();
    for (const c of painting) if (!paint(c, t, still)) painting.delete(c);
    if (painting.size) kick();
  }

  // -- deployments
  const depEl = h('div', { class: 'deps', role: 'list' }), deps = new Map(), rolling = new Map();
  function dep(key, d) {
    const r = { old: h('i', { class: 's-old' }), fresh: h('i', { class: 's-new' }), wait: h('i', { class: 's-wait' }), n: h('span', { class: 'tnum dn' }), what: h('span', { class: 'what' }), g: h('span', { class: 'dg' }) };
    const me = key;
    r.el = h('a', { class: 'dep', role: 'listitem', href: hrefOf('deployments', key), onmouseenter: () => { lit = me; repaint(); }, onmouseleave: () => { lit = null; repaint(); }, onfocus: () => { lit = me; repaint(); }, onblur: () => { lit = null; repaint(); } },
      r.g, h('span', { class: 'dname' }, h('b', {}, d.metadata.name), h('span', { class: 'sub' }, d.metadata.namespace)), h('span', { class: 'roll' }, r.fresh, r.wait, r.old), r.n, r.what);
    deps.set(key, r);
    return r;
  }
  // The deployment of a pod, by owner references.
  let sets = new Map();
  const owner = (p) => { const rs = sets.get(p.metadata.ownerReferences?.[0]?.uid), d = rs?.metadata.ownerReferences?.[0]; return d ? p.metadata.namespace + '/' + d.name : ''; };
  function rolls() {
    const byDep = new Map(), newest = new Map();
    sets = new Map([...core('replicasets').values()].map((r) => [r.metadata.uid, r]));
    for (const r of sets.values()) { const d = r.metadata.ownerReferences?.[0]?.uid, had = newest.get(d); if (d && (!had || +r.metadata.revision > +had.metadata.revision)) newest.set(d, r); }
    for (const p of core('pods').values()) {
      const rs = sets.get(p.metadata.ownerReferences?.[0]?.uid);
      if (!rs || p.metadata.deletionTimestamp) continue;
      const k = owner(p);
      let c = byDep.get(k); if (!c) byDep.set(k, (c = { ok: 0, wait: 0, old: 0, oldImg: '' }));
      if (newest.get(rs.metadata.ownerReferences?.[0]?.uid) !== rs) { c.old++; c.oldImg = image(rs); } else if (phaseOf(p) === 'running') c.ok++; else c.wait++;
    }
    const list = [];
    for (const [key, d] of core('deployments')) {
      if (!inScope(d)) continue;
      const c = byDep.get(key) || { ok: 0, wait: 0, old: 0 }, want = d.spec.replicas, r = deps.get(key) || dep(key, d);
      const active = c.old > 0 || c.wait > 0 || c.ok < want, tag = (t) => (t.includes(':') ? t.slice(t.lastIndexOf(':') + 1) : t.split('/').pop());
      if (active) rolling.set(key, Date.now());
      const total = Math.max(want, c.ok + c.wait + c.old);
      r.fresh.style.flexGrow = c.ok; r.wait.style.flexGrow = c.wait; r.old.style.flexGrow = c.old;
      r.fresh.style.flexBasis = r.wait.style.flexBasis = r.old.style.flexBasis = '0';
      text(r.n, `${c.ok}/${want}`);
      const img = image(d);
      text(r.what, c.old ? `${tag(c.oldImg)} → ${tag(img)}, ${c.old} old left${total > want ? `, ${total - want} extra` : ''}` : c.wait || c.ok < want ? `${want - c.ok} not ready, ${tag(img)}` : tag(img));
      r.el.classList.toggle('active', active); r.el.classList.toggle('rolling', c.old > 0); r.el.classList.toggle('line', rolling.has(key) && Date.now() - rolling.get(key) < 5000);
      const ph = phaseOf(d); if (r.ph !== ph) { r.ph = ph; fill(r.g, glyph(ph)); }
      list.push([key, r, c.old ? 0 : rolling.has(key) && Date.now() - rolling.get(key) < 5000 ? 1 : 2]);
    }
    for (const [key, r] of deps) if (!core('deployments').has(key)) { r.el.remove(); deps.delete(key); rolling.delete(key); }
    list.sort((a, b) => a[2] - b[2] || (a[0] < b[0] ? -1 : 1));
    const want = list.map((x) => x[1].el);
    if (!want.length) { text(noDeps, denied('deployments') ? 'You may not list deployments.' : 'No deployments. Try: kubectl create deployment web --image=nginx --replicas=3'); if (depEl.firstChild !== noDeps) depEl.replaceChildren(noDeps); } else if (want.some((e, i) => depEl.children[i] !== e) || depEl.children.length !== want.length) depEl.replaceChildren(...want);
const moving = list.filter((x) => x[2] === 0).length, unready = list.filter((x) => x[1].el.classList.contains('active')).length - moving;
    text(rollN, [moving ? `${moving} rolling` : '', unready > 0 ? `${unready} not ready` : ''].filter(Boolean).join(', ') || (list.length ? 'all settled' : ''));
  }
  const image = (o) => o.spec.template.spec.containers[0]?.image || '';
  const noDeps = h('p', { class: 'quiet' });
  const none = h('p', { class: 'quiet', hidden: true }, 'No nodes.');
  const rollN = h('span', { class: 'sub' });

  // -- events
  const evEl = h('ol', { class: 'events', 'aria-label': 'Events, newest first' });
  const more = h('button', { class: 'evmore', type: 'button', hidden: true, onclick: () => { holding = 0; hoverEv = false; events(); } });
  const noEvents = h('li', { class: 'quiet' });
  let hoverEv = false, holding = 0;
  const evRows = new Map();
  evEl.addEventListener('mouseenter', () => { hoverEv = true; }); evEl.addEventListener('mouseleave', () => { hoverEv = false; holding = 0; events(); });
  function events(ch) {
    if (hoverEv) { if (ch) holding += ch.size; more.hidden = !holding; text(more, `${num(holding)} new while you read`); return; }
    more.hidden = true;
    const list = [...core('events').values()].filter(inScope).sort((a, b) => (a.lastTimestamp < b.lastTimestamp ? 1 : a.lastTimestamp > b.lastTimestamp ? -1 : +b.metadata.resourceVersion - +a.metadata.resourceVersion)).slice(0, 60);
    const els = list.map((e) => {
      const id = e.metadata.uid; let r = evRows.get(id);
      if (!r) {
        const o = e.involvedObject, pl = kindFor(o.apiVersion, o.kind), key = (o.namespace ? o.namespace + '/' : '') + o.name;
        r = { n: h('span', { class: 'times' }), t: h('time') };
        r.el = h('li', { class: 'ev ' + (e.type === 'Warning' ? 'warn' : '') }, r.t, h('div', {}, h('span', { class: 'evhead' }, e.type === 'Warning' ? glyph('failed', 9) : null, h('b', {}, e.reason), r.n, h('a', { href: pl ? hrefOf(pl, key) : '#/t/events' }, o.name || '')), h('span', { class: 'msg' }, e.message)));
        evRows.set(id, r);
      }
      text(r.t, clockTime(Date.parse(e.lastTimestamp))); text(r.n, e.count > 1 ? '×' + e.count : '');
      return r.el;
    });
    const keep = new Set(list.map((e) => e.metadata.uid));
    for (const k of evRows.keys()) if (!keep.has(k)) evRows.delete(k);
    if (!els.length) { text(noEvents, denied('events') ? 'You may not list events.' : 'No events yet.'); if (evEl.firstChild !== noEvents) evEl.replaceChildren(noEvents); } else if (els.some((e, i) => evEl.children[i] !== e) || evEl.children.length !== els.length) evEl.replaceChildren(...els);
  }

  // -- kinds
  const kindEl = h('div', { class: 'kinds' }), kindRows = new Map();
  const all = h('button', { class: 'btn small', type: 'button', 'aria-pressed': 'false', onclick: () => { all.setAttribute('aria-pressed', String(all.getAttribute('aria-pressed') !== 'true')); kinds(); } }, 'All kinds');
  function kinds() {
    const every = all.getAttribute('aria-pressed') === 'true', want = [];
    for (const k of live.kinds.values()) {
      if (k.live || !k.feed || !(every || k.n || k.denied || k.core)) continue;
      let r = kindRows.get(k.id);
      if (!r) {
        r = { n: h('b', { class: 'tnum' }), c: h('canvas', { 'aria-hidden': 'true' }), r: h('span', { class: 'sub tnum' }) };
        r.el = h('a', { class: 'kind', href: '#/t/' + k.id }, h('span', { class: 'kname' }, k.id), r.n, r.c, r.r);
        kindRows.set(k.id, r);
      }
      text(r.n, k.denied ? '–' : num(k.n));
      text(r.r, k.denied ? 'no access' : k.rate > 0.05 ? rate(k.rate) + '/s' : 'quiet');
      spark(r.c, k.trend, 56, 16, k.rate > 0.05 ? colors.accent : colors.slot, 0.5);
      want.push(r.el);
    }
    if (want.length !== kindEl.children.length || want.some((e, i) => kindEl.children[i] !== e)) kindEl.replaceChildren(...want);
  }
  const el = h('section', { class: 'view overview', 'aria-label': 'Overview' },
    h('div', { class: 'figs' }, figs.map((f) => f.el)),
    h('div', { class: 'ogrid' },
      h('section', { class: 'panel p-nodes' }, h('header', {}, h('h2', {}, 'Nodes'), h('div', { class: 'grow' }), legend), nodesEl, none),
      h('section', { class: 'panel p-deps' }, h('header', {}, h('h2', {}, 'Deployments'), rollN, h('div', { class: 'grow' }), h('ul', { class: 'legend wide-only' }, h('li', {}, h('i', { class: 'key s-new' }), 'new, ready'), h('li', {}, h('i', { class: 'key s-wait' }), 'new, starting'), h('li', {}, h('i', { class: 'key s-old' }), 'old'))), depEl),
      h('section', { class: 'panel p-kinds' }, h('header', {}, h('h2', {}, 'Kinds'), h('span', { class: 'sub' }, 'changes in the last 30 s'), h('div', { class: 'grow' }), all), kindEl),
      h('section', { class: 'panel p-events' }, h('header', {}, h('h2', {}, 'Events'), h('div', { class: 'grow' }), h('a', { class: 'sub', href: '#/t/events' }, 'all')), more, evEl)),
    tip);
  // Sums over all pods or events are made again after a pause that is long for their duration.
  const lazily = (make) => {
    let timer = 0, pause = 120;
    stop.push(() => clearTimeout(timer));
    return () => { if (!timer) timer = setTimeout(() => { timer = 0; const t = performance.now(); make(); pause = Math.min(2000, Math.max(120, (performance.now() - t) * 30)); }, pause); };
  };
  const rolled = lazily(rolls), told = lazily(() => events()), summed = lazily(figures);
  stop.push(on((m) => {
    const of = (id) => m.byFeed && [...m.byFeed].find(([f]) => f.spec.counted === id)?.[1];
    if (m.ids?.has('pods') || m.ids?.has('nodes')) place(of('pods')?.keys(), of('nodes')?.keys());
    if (m.ids?.has('pods') || m.ids?.has('deployments') || m.ids?.has('replicasets')) rolled();
    if (m.ids?.has('deployments') || m.ids?.has('nodes') || m.ids?.has('events')) summed();
    if (m.ids?.has('events')) { if (hoverEv) events(of('events')); else told(); }
    if (m.kinds) kinds();
    if (m.second) { kinds(); summed(); rolled(); if (!cards.size) arrange(); if (!core('events').size) events(); const f = figs[4]; text(f.big, rate(live.perSec)); spark(f.canvas, live.trend, 88, 22, colors.accent); }
  }));
  const ro = new ResizeObserver(() => { resized = true; kick(); });
  const redo = () => { readColors(); arrange(); show(); figures(); rolls(); events(); kinds(); };
  return { el, title: 'Overview', scope: redo, theme: redo, ready() { readColors(); ro.observe(nodesEl); redo(); text(figs[4].big, rate(live.perSec)); }, destroy() { stop.forEach((f) => f()); ro.disconnect(); cancelAnimationFrame(frame); } };
}
