// The river: who writes, the store, the watch cache, who watches; with rates and lag at each stage.
import { h, fill, text, num, rate, ms, bytes, css, sized, spark, calm } from './dom.js';
import { live, on, pathOf, release, use } from './live.js';
import { VTable } from './vtable.js';
import { duration } from './cells.js';

const PATH = '/debug/headwater/river';
const FROM = { view: ['view', 'up to date'], window: ['window', 'in memory'], history: ['disk', 'history on disk'] };
// "1.5s", "20ms" and "2m" as milliseconds.
const lagOf = (t) => { const m = /^([\d.]+)(µs|us|ms|s)$/.exec(t || ''); return m ? m[1] * { us: 1e-3, 'µs': 1e-3, ms: 1, s: 1e3 }[m[2]] : duration(t) || 0; };
// Names of components without what is the same for all of them.
const brief = (user) => user.replace(/^system:serviceaccount:[^:]+:/, '').replace(/^system:(?=.)/, '');
const WIDEST = 24; // writers and groups of watchers that are drawn; the others are one

function none(title, why) { return { title: 'River', el: h('section', { class: 'view' }, h('div', { class: 'state' }, h('div', { class: 'big' }, '~'), h('h2', {}, title), h('p', {}, why))) }; }
export function river() {
  const kinds = [...live.kinds.values()], kw = kinds.find((k) => k.live && k.plural === 'watchers'), kr = kinds.find((k) => k.live && k.plural === 'requests');
  if (!live.headwater || !kw) return none('This server does not show its river', 'Positions of watchers and the lag of each stage come from Headwater itself. This is another Kubernetes server: everything else on this page works.');
  // What the server says: lines of its river, and the resources watchers and requests.
  const lines = use({ base: PATH, as: 'object', lines: true, query: {} });
  const watchers = use({ base: pathOf(kw), as: 'object', plural: kw.plural, of: kw.id, query: {} });
  const running = kr ? use({ base: pathOf(kr), as: 'object', plural: kr.plural, of: kr.id, query: {} }) : null;
  const sim = { rev: live.rev, oldest: 0, windowFrom: 0, watchers: [], writers: new Map(), total: 0, out: 0, rates: [], line: null, slow: {} };
  const known = new Map();
  const stop = []; let col = {}, raf = 0, last = 0, parts = [], bands = [], by = 'user', dirtyRows = true, seen = 0;
  const colors = () => { col = { water: css('--accent'), slow: css('--ph-pending'), disk: css('--ph-failed'), line: css('--line'), ink3: css('--ink-3'), surf: css('--surface'), slot: css('--slot') }; };
  const canvas = h('canvas', { class: 'flowcanvas', 'aria-hidden': 'true' });
  const stage = (title, sub) => {
    const s = { big: h('b'), unit: h('span', { class: 'unit' }), rows: h('dl', { class: 'srows' }), spark: h('canvas', { 'aria-hidden': 'true' }) };
    s.el = h('section', { class: 'stage' }, h('h3', {}, title), h('p', { class: 'sub' }, sub), h('div', { class: 'sbig' }, s.big, s.unit), s.spark, s.rows);
    return s;
  };
  const store = stage('Store', 'writes share a sync'), cache = stage('Watch cache', 'one task, in order');
  const writers = h('div', { class: 'flist' }), groups = h('div', { class: 'flist right' });
  const wHead = h('span', { class: 'sub tnum' }), gHead = h('span', { class: 'sub tnum' });
  const gap = (label) => { const v = h('b', { class: 'tnum' }); return { v, el: h('div', { class: 'gapl' }, v, h('span', {}, label)) }; };
  const g1 = gap('slowest 1 %'), g2 = gap('revisions behind'), g3 = gap('latest watcher');
  const total = h('span', { class: 'sub' });
  const flow = h('div', { class: 'flow' }, canvas,
    h('div', { class: 'fcol' }, h('h3', {}, 'Writers', wHead), writers), g1.el, store.el, g2.el, cache.el, g3.el,
    h('div', { class: 'fcol' }, h('h3', {}, 'Watchers', gHead), groups));
  const wRows = new Map(), gRows = new Map();
  function row(map, host, id, href) {
    let r = map.get(id);
    if (!r) { r = { name: h('span', { class: 'fn' }), a: h('span', { class: 'tnum fa' }), b: h('span', { class: 'sub tnum fb' }) }; r.el = h('div', { class: 'frow', onmouseenter: () => { hot = id; }, onmouseleave: () => { hot = null; } }, r.name, r.b, r.a); text(r.name, brief(id)); r.el.title = id; map.set(id, r); host.append(r.el); }
    return r;
  }
  let hot = null;

  // -- positions on the line of revisions
  const ruler = h('canvas', { class: 'rulercanvas', 'aria-hidden': 'true' }), rOld = h('span'), rWin = h('span'), rNow = h('span'), rSum = h('span', { class: 'sub' });
  const rulerEl = h('section', { class: 'panel p-ruler' }, h('header', {}, h('h2', {}, 'Positions'), rSum), h('div', { class: 'ruler' }, ruler), h('div', { class: 'rlabels tnum' }, rOld, rWin, rNow));
  const rx = (lag, w) => { const max = Math.log(2 + Math.max(0, sim.rev - sim.oldest)); return w - 10 - (Math.log(1 + lag) / max) * (w - 20); };
  function drawRuler() {
    const w = ruler.parentNode.clientWidth, H = 56, g = sized(ruler, w, H), y = 40;
    const xw = rx(sim.rev - sim.windowFrom, w), x0 = rx(sim.rev - sim.oldest, w), x1 = rx(0, w);
    g.fillStyle = col.slot; g.globalAlpha = 0.55; g.beginPath(); g.roundRect(x0, y, Math.max(0, xw - x0 - 1), 6, 3); g.fill();
    g.globalAlpha = 0.3; g.fillStyle = col.water; g.beginPath(); g.roundRect(xw + 1, y, Math.max(0, x1 - xw), 6, 3); g.fill(); g.globalAlpha = 1;
    const piles = new Map();
    for (const q of [...sim.watchers].sort((a, b) => a.lag - b.lag).slice(-600)) {
      const x = Math.round(rx(q.lag < 4 ? 0 : q.lag, w) / 7) * 7, n = piles.get(x) || 0; piles.set(x, n + 1);
      const c = q.from === 'disk' ? col.disk : q.from === 'window' ? col.slow : col.water;
      g.fillStyle = c; g.globalAlpha = hot && hot !== q.resource && hot !== q.user ? 0.2 : 1;
      g.beginPath(); g.arc(Math.min(x1, x) - Math.floor(n / 5) * 7, y - 6 - (n % 5) * 7, 2.6, 0, 7); g.fill();
      if (q.from !== 'view') { g.fillRect(Math.min(x1, x) - 0.5, y - 3, 1, 9); }
    }
    g.globalAlpha = 1;
    g.fillStyle = col.ink3; g.font = '11px ' + css('--sans'); g.textAlign = 'left';
    let edge = -1; // a label that would run into the one before it goes a line higher
    for (const q of sim.watchers.filter((v) => v.lag > 250).sort((a, b) => b.lag - a.lag).slice(0, 4)) { const s = `${q.user}, ${num(q.lag)} behind`, x = Math.min(rx(q.lag, w) + 8, w - 8 - g.measureText(s).width), up = x < edge + 12; g.fillText(s, x, y - (up ? 24 : 9)); edge = Math.max(edge, x + g.measureText(s).width); }
    rWin.style.left = 12 + xw + 'px';
    text(rOld, xw < 190 ? (sim.line?.diskBytes ? 'on disk' : 'older') : `oldest kept ${num(sim.oldest)}`); text(rWin, w - xw < 300 ? '' : `in memory from ${num(sim.windowFrom)}`); text(rNow, `now ${num(sim.rev)}`);
    const d = sim.watchers.filter((x) => x.from === 'disk').length, m = sim.watchers.filter((x) => x.from === 'window').length;
    text(rSum, `${sim.watchers.length - d - m} up to date, ${m} reading the window, ${d} reading from disk; nobody waits for them`);
  }
  // -- watchers
  const vt = new VTable({ label: 'Watchers', cls: 'watchers' });
  const W = (name, get, o) => ({ name, get, ...o });
  vt.setColumns([
    W('User', (w) => brief(w.user), { main: 1, width: 'minmax(10ch, 1.3fr)' }), W('Client', (w) => w.client, { width: 'minmax(9ch, 1fr)' }), W('Resource', (w) => w.resource, { width: 'minmax(9ch, 1fr)' }), W('Selector', (w) => w.selector || '–', { width: 'minmax(8ch, .8fr)' }),
    W('Reads from', (w) => w.from, { width: '10ch', cell: (td, r) => { if (td.dataset.f === r.obj.from) return; td.dataset.f = r.obj.from; fill(td, h('span', { class: 'from f-' + r.obj.from, title: FROM[r.obj.from][1] }, FROM[r.obj.from][0])); } }),
    W('Position', (w) => num(w.pos), { num: 1, sort: (w) => w.pos, width: '9ch' }), W('Behind', (w) => (w.lag ? num(w.lag) : '0'), { num: 1, sort: (w) => w.lag, first: -1, width: '8ch', cell: (td, r) => { text(td, num(r.obj.lag)); td.classList.toggle('late', r.obj.lag > 60); } }),
    W('Lag', (w) => (w.ms ? ms(w.ms) : '0'), { num: 1, sort: (w) => w.ms, first: -1, width: '8ch', cell: (td, r) => { text(td, r.obj.ms ? ms(r.obj.ms) : '0'); td.classList.toggle('late', r.obj.lag > 60); } }), W('Sent', (w) => bytes(w.bytes), { num: 1, sort: (w) => w.bytes, first: -1, width: '9ch' }),
  ]);
  vt.sort = { i: 6, dir: -1 }; vt.mark();
  const rowOf = new Map();
  let rows = [];
  // -- requests
  const reqEl = h('div', { class: 'reqs' });
  const segs = ['user', 'level'].map((id) => h('button', { class: 'seg', type: 'button', 'aria-pressed': String(by === id), onclick: () => { by = id; segs.forEach((s, i) => s.setAttribute('aria-pressed', String(['user', 'level'][i] === by))); fill(reqEl); reqRows.clear(); reqs(); } }, id === 'user' ? 'By user' : 'By priority level'));
  const reqRows = new Map();
  function reqs() {
    const l = sim.line;
    if (!l) return;
    const now = new Map();
    for (const q of running?.objs.values() || []) now.set(q.spec.user, (now.get(q.spec.user) || 0) + 1);
    const list = by === 'user' ? l.users.map((q) => ({ id: q.user, sub: q.level || 'no level', a: q.writes, b: q.reads, p: q.slowestMillis, x: now.get(q.user) ? now.get(q.user) + ' now' : '' })) : l.levels.map((q) => ({ id: q.name, sub: q.seats === null ? 'no limit' : `${q.running} of ${q.seats} seats`, a: q.rate, b: 0, p: null, x: (q.waiting ? q.waiting + ' waiting' : '') + (q.rejected ? `${q.waiting ? ', ' : ''}${num(q.rejected)} rejected` : '') }));
    const ids = new Set(list.map((q) => q.id));
    for (const [id, r] of reqRows) if (!ids.has(id)) { r.el.remove(); reqRows.delete(id); }
    const top = Math.max(1, ...list.map((r) => r.a + r.b));
    for (const q of list) {
      let r = reqRows.get(q.id);
      if (!r) { r = { a: h('i', { class: 'rw' }), b: h('i', { class: 'rr' }), n: h('span', { class: 'tnum rn' }), p: h('span', { class: 'tnum sub rp' }), s: h('span', { class: 'sub' }) }; r.el = h('div', { class: 'req' }, h('span', { class: 'rname' }, h('b', { title: q.id }, brief(q.id)), r.s), h('span', { class: 'rbar' }, r.a, r.b), r.n, r.p); reqRows.set(q.id, r); reqEl.append(r.el); }
      r.a.style.width = (q.a / top) * 100 + '%'; r.b.style.width = (q.b / top) * 100 + '%';
      text(r.n, rate(q.a + q.b) + '/s');  text(r.p, q.p === null || q.p === undefined ? '–' : ms(q.p)); text(r.s, q.sub + (q.x ? ', ' + q.x : ''));
    }
  }
  const reorder = () => { const els = [...reqRows.values()]; if (by === 'user') els.sort((a, b) => parseFloat(b.n.textContent) - parseFloat(a.n.textContent)); const want = els.map((r) => r.el); if (want.some((e, i) => reqEl.children[i] !== e)) reqEl.replaceChildren(...want); };
  const el = h('section', { class: 'view river', 'aria-label': 'River' },
    h('section', { class: 'panel p-flow' }, h('header', {}, h('h2', {}, 'From write to watcher'), total), flow), rulerEl,
    h('div', { class: 'rcols' },
      h('section', { class: 'panel p-watchers' }, h('header', {}, h('h2', {}, 'Watchers'), h('span', { class: 'sub' }, 'a cursor each, not a queue')), vt.el),
      h('section', { class: 'panel p-reqs' }, h('header', {}, h('h2', {}, 'Requests'), h('div', { class: 'grow' }), h('div', { class: 'segs', role: 'group', 'aria-label': 'Group requests' }, segs)), reqEl, h('ul', { class: 'legend pad' }, h('li', {}, h('i', { class: 'key rw' }), 'writes'), h('li', {}, h('i', { class: 'key rr' }), 'reads'), h('li', { class: 'grow' }), h('li', {}, 'slowest 1 %')))));

  function take() { // the newest line and the watchers, as the drawing needs them
    const l = sim.line;
    if (!l) return false;
    sim.rev = l.revision; sim.oldest = l.compacted; sim.windowFrom = Math.max(l.windowFrom, l.compacted); sim.total += (l.writes - sim.total) * 0.5;
    for (const w of sim.writers.values()) w.next = 0;
    for (const q of l.users) if (q.writes > 0 || sim.writers.has(q.user)) { const w = sim.writers.get(q.user) || { user: q.user, rate: 0, quiet: 0 }; w.next = q.writes; sim.writers.set(q.user, w); }
    for (const [id, w] of sim.writers) { w.rate += (w.next - w.rate) * 0.5; w.quiet = w.next ? 0 : w.quiet + 1; if (w.quiet > 240) sim.writers.delete(id); }
    if (dirtyRows) {
      dirtyRows = false;
      const t = performance.now(), dt = Math.max(0.2, (t - seen) / 1000), first = !seen;
      seen = t;
      sim.watchers = [...watchers.objs].map(([key, o]) => {
        const from = FROM[o.status.readsFrom]?.[0] || 'view', old = known.get(key), events = o.status.events || 0;
        const rate = first || !old ? 0 : old.rate + (Math.max(0, events - old.events) / dt - old.rate) * 0.6;
        const w = { id: key, metadata: o.metadata, user: o.spec.user, client: o.spec.client, resource: o.spec.resource, selector: [o.spec.namespace && 'in ' + o.spec.namespace, o.spec.selector].filter(Boolean).join(' '), from, pos: +o.status.position || 0, lag: o.status.pendingEvents || 0, ms: lagOf(o.status.lag), bytes: o.status.bytes || 0, events, rate };
        known.set(key, w);
        return w;
      });
      for (const key of known.keys()) if (!watchers.objs.has(key)) { known.delete(key); rowOf.delete(key); }
      rows = sim.watchers.map((w) => { let r = rowOf.get(w.id); if (!r) rowOf.set(w.id, (r = { key: w.id })); r.obj = w; return r; });
      sim.out = sim.watchers.reduce((a, w) => a + (w.resource.endsWith('.headwater.dev') ? 0 : w.rate), 0);
    }
    sim.rates.push({ in: sim.total, out: sim.out }); if (sim.rates.length > 120) sim.rates.shift();
    return true;
  }
  const settle = (map, host, ids) => { for (const [id, r] of map) if (!ids.has(id)) { r.el.remove(); map.delete(id); } };
  function update() {
    if (!take()) return;
    const l = sim.line;
    const wl = [...sim.writers.values()].sort((a, b) => b.rate - a.rate).slice(0, WIDEST / 2).sort((a, b) => (a.user < b.user ? -1 : 1));
    settle(wRows, writers, new Set(wl.map((w) => w.user)));
    for (const w of wl) { const r = row(wRows, writers, w.user); r.rate = w.rate; text(r.a, w.rate < 0.05 ? '–' : rate(w.rate) + '/s'); r.a.classList.toggle('nil', w.rate < 0.05); }
    text(wHead, rate(sim.total) + ' writes/s');
    const groups_ = new Map();
    for (const w of sim.watchers) { if (w.resource.endsWith('.headwater.dev')) continue; let g = groups_.get(w.resource); if (!g) groups_.set(w.resource, (g = { n: 0, rate: 0, lag: 0, from: 'view' })); g.n++; g.rate += w.rate; if (w.lag > g.lag) { g.lag = w.lag; g.from = w.from; } }
    const most = [...groups_].sort((a, b) => b[1].lag - a[1].lag || b[1].rate - a[1].rate || b[1].n - a[1].n).slice(0, WIDEST / 2);
    settle(gRows, groups, new Set(most.map(([id]) => id)));
    for (const [id, g] of most.sort()) { const r = row(gRows, groups, id); r.rate = g.rate; r.from = g.from; text(r.a, g.rate < 0.05 ? '–' : rate(g.rate) + '/s'); r.a.classList.toggle('nil', g.rate < 0.05); text(r.b, g.lag > 60 ? `${num(g.lag)} behind` : `${g.n}`); r.el.title = `${g.n} watchers, the slowest is ${num(g.lag)} events behind`; r.el.className = 'frow f-' + g.from; }
    for (const [map, host] of [[wRows, writers], [gRows, groups]]) { const want = [...map].sort((a, b) => (a[0] < b[0] ? -1 : 1)).map((x) => x[1].el); if (want.some((e, i) => host.children[i] !== e)) host.replaceChildren(...want); }
    text(gHead, `${num(l.watches)}, ${rate(sim.out)} events/s`);
    const writes = l.users.filter((q) => q.writes > 0 && q.slowestMillis), slow = writes.length ? Math.max(...writes.map((q) => q.slowestMillis)) : null, late = sim.watchers.reduce((a, w) => Math.max(a, w.ms), 0);
    if (slow !== null) sim.slow.write = slow;
    text(g1.v, sim.slow.write ? ms(sim.slow.write) : '–'); text(g2.v, num(Math.max(0, l.revision - l.applied))); text(g3.v, late ? ms(late) : 'up to date');
    text(total, `${num(l.watches)} watchers, ${num(sim.watchers.filter((w) => w.lag > 60).length)} of them late; nobody waits for them`);
    text(store.big, rate(sim.total)); text(store.unit, 'writes/s');
    const dl = (host, list) => { if (host.children.length !== list.length) fill(host, list.map(([a]) => h('div', {}, h('dt', {}, a), h('dd', { class: 'tnum' })))); list.forEach(([, b], i) => text(host.children[i].lastChild, b)); };
    dl(store.rows, [['Revision', num(l.revision)], ['Kept from', num(l.compacted)], ['Data', l.diskBytes ? bytes(l.diskBytes) + ' on disk' : 'in memory']]);
    text(cache.big, num(Math.max(0, l.revision - l.applied))); text(cache.unit, 'revisions behind');
    dl(cache.rows, [['Objects', num(l.objects)], ['Kinds', num(l.kinds)], ['Window from', num(sim.windowFrom)]]);
    spark(store.spark, sim.rates.map((r) => r.in), store.el.clientWidth - 24, 28, col.water); spark(cache.spark, sim.rates.map((r) => r.out), cache.el.clientWidth - 24, 28, col.water);
    vt.rows = rows; if (!vt.el.matches(':hover')) vt.order(); else vt.setRows(rows); reqs(); drawRuler(); layout();
  }
  // -- the water
  const thick = (r) => Math.max(1.5, Math.min(30, 1.5 + Math.sqrt(r) * 2.1));
  function layout() {
    const R = flow.getBoundingClientRect(), box = (e) => { const r = e.getBoundingClientRect(); return { l: r.left - R.left, r: r.right - R.left, t: r.top - R.top, b: r.bottom - R.top, x: (r.left + r.right) / 2 - R.left, y: (r.top + r.bottom) / 2 - R.top }; };
    const S = box(store.el), K = box(cache.el), upright = box(flow.children[1]).r > S.l;
    const ws = [...wRows.values()].map((r) => ({ w: thick(r.rate), rate: r.rate, b: box(r.el), id: text && r.name.textContent })), gs = [...gRows.values()].map((r) => ({ w: thick(r.rate), rate: r.rate, from: r.from, b: box(r.el), id: r.name.textContent }));
    const sum = (a) => a.reduce((x, y) => x + y.w, 0) + (a.length - 1) * 1;
    const old = new Map(bands.map((b) => [b.id, b])); bands = [];
    const add = (id, x0, y0, x1, y1, w0, w1, rt, from) => { const o = old.get(id) || { id, acc: 0 }; Object.assign(o, { x0, y0, x1, y1, w0, w1, rate: rt || 0, from, upright }); bands.push(o); };
    const trunk = Math.min(64, Math.max(10, sum(ws)));
    if (!upright) {
      let y = S.y - sum(ws) / 2;
      for (const q of ws) { add('w' + q.id, q.b.r + 4, q.b.y, S.l, y + q.w / 2, q.w, q.w, q.rate); y += q.w + 1; }
      add('trunk', S.r, S.y, K.l, K.y, trunk, trunk, sim.total);
      y = K.y - (sum(gs) + 4 * gs.filter((q) => q.from !== 'view').length) / 2;
      for (const q of gs) { add('g' + q.id, K.r, y + q.w / 2, q.b.l - 4, q.b.y, q.w, q.w, q.rate); y += q.w + 1;
        if (q.from !== 'view') { add('s' + q.id, K.r, y + 1.5, q.b.l - 4, q.b.y + q.w / 2 + 3.5, 3, 3, 7, q.from); y += 4; } } // the late one, in its own thread
    } else {
      const W = box(flow.children[1]), G = box(flow.children[7]), cx = S.x - 60;
      add('w', cx, W.b, cx, S.t, trunk, trunk, sim.total); add('trunk', cx, S.b, cx, K.t, trunk, trunk, sim.total); add('g', cx, K.b, cx, G.t, trunk * 1.3, trunk * 1.3, sim.out);
    }
    if (calm()) paint(0);
  }
  const P = (b, u, v) => { const e = u * u * (3 - 2 * u), w = (b.w0 + (b.w1 - b.w0) * e) * v; return b.upright ? [b.x0 + (b.x1 - b.x0) * e + w, b.y0 + (b.y1 - b.y0) * u] : [b.x0 + (b.x1 - b.x0) * u, b.y0 + (b.y1 - b.y0) * e + w]; };
  function paint(dt) {
    const g = sized(canvas, flow.clientWidth, flow.clientHeight);
    for (const b of bands) {
      const c = b.from === 'disk' ? col.disk : b.from === 'window' ? col.slow : col.water;
      const dim = hot && b.id.slice(1) !== hot && b.id !== 'trunk';
      g.fillStyle = c; g.globalAlpha = dim ? 0.06 : 0.18; g.beginPath();
      for (let i = 0; i <= 24; i++) g.lineTo(...P(b, i / 24, -0.5));
      for (let i = 24; i >= 0; i--) g.lineTo(...P(b, i / 24, 0.5));
      g.fill();
      if (dt) { b.acc += Math.min(48, b.rate * 0.5 + 0.3) * dt; while (b.acc > 1) { b.acc--; if (parts.length < 420) parts.push({ b, u: 0, v: (Math.random() - 0.5) * 0.86, s: 0.9 + Math.random() * 0.3 }); } }
    }
    g.lineCap = 'round';
    const now = new Set(bands);
    parts = parts.filter((p) => {
      const b = p.b; if (!now.has(b)) return false;
      const len = Math.hypot(b.x1 - b.x0, b.y1 - b.y0) || 1;
      p.u += ((b.from === 'disk' ? 38 : b.from === 'window' ? 64 : 120) * p.s * dt) / len;
      if (p.u > 1) return false;
      const [x, y] = P(b, p.u, p.v), [x2, y2] = P(b, Math.max(0, p.u - 9 / len), p.v);
      g.strokeStyle = b.from === 'disk' ? col.disk : b.from === 'window' ? col.slow : col.water;
      g.globalAlpha = (hot && b.id.slice(1) !== hot && b.id !== 'trunk' ? 0.15 : 0.85) * Math.min(1, p.u * 6, (1 - p.u) * 8);
      g.lineWidth = 1.5; g.beginPath(); g.moveTo(x2, y2); g.lineTo(x, y); g.stroke();
      return true;
    });
    g.globalAlpha = 1;
  }
  function loop(t) { if (document.hidden) { raf = requestAnimationFrame(loop); last = t; return; } raf = requestAnimationFrame(loop); const dt = Math.min(0.05, (t - (last || t)) / 1000); last = t; if (live.state === 'live') paint(dt); }
  let n = 0, queued = 0;
  const soon = () => { if (!queued) queued = requestAnimationFrame(() => { queued = 0; update(); if (++n % 4 === 0) reorder(); }); };
  const waiting = h('div', { class: 'state' }, h('h2', {}, 'Reading'));
  const content = el.firstChild;
  stop.push(on((m) => {
    const got = m.byFeed?.get(lines);
    if (m.byFeed?.has(watchers)) dirtyRows = true;
    if (got) { for (const e of got.values()) sim.line = e.obj; soon(); }
    const d = lines.denied || (watchers.denied && !sim.line ? watchers.denied : null);
    waiting.hidden = !d && !!sim.line; el.classList.toggle('empty', !sim.line);
    if (d && waiting.dataset.d !== d.message) { waiting.dataset.d = d.message; fill(waiting, h('div', { class: 'big' }, d.code), h('h2', {}, 'You may not see the river'), h('p', {}, d.message), h('p', { class: 'sub' }, 'It needs the verb get on the path /debug/headwater/river, and list and watch on watchers.headwater.dev.')); }
  }));
  el.insertBefore(waiting, content); el.classList.add('empty');
  const ro = new ResizeObserver(soon);
  return {
    el, title: 'River', vt, theme() { colors(); soon(); },
    ready() { colors(); vt.resize(); vt.rows = rows; vt.order(); update(); ro.observe(flow); if (!calm()) raf = requestAnimationFrame(loop); },
    destroy() { cancelAnimationFrame(queued); cancelAnimationFrame(raf); release(lines); release(watchers); if (running) release(running); ro.disconnect(); vt.destroy(); stop.forEach((f) => f()); },
  };
}
