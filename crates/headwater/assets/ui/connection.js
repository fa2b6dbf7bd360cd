// The page's own streams: where each one is, and what happened to it.
import { h, fill, text, num, bytes, clockTime, css, sized, ms } from './dom.js';
import { live, on } from './live.js';

const SPAN = 180000;
const WORD = { live: 'Live', list: 'Listing', lost: 'Reconnecting', relist: 'Listing again', denied: 'No access' }, DOT = { live: 'live', list: 'relist', lost: 'lost', relist: 'relist', denied: 'lost' };
const spans = new Map(); // what each stream was, and when; kept while the page is open
on((m) => {
  if (!m.second && !m.conn) return;
  const t = Date.now();
  for (const [id, s] of live.streams) {
    let list = spans.get(id); if (!list) spans.set(id, (list = []));
    const last = list.at(-1), state = live.state === 'lost' ? 'lost' : s.state;
    if (!last || last.state !== state) { if (last) last.to = t; list.push({ state, from: t }); }
    while (list.length > 60 || (list[0].to && t - list[0].to > SPAN)) list.shift();
  }
  for (const id of spans.keys()) if (!live.streams.has(id)) spans.delete(id);
});
export function connection() {
  const stop = [], rows = new Map();
  const head = h('div', { class: 'conn-head' }), list = h('div', { class: 'streams', role: 'table', 'aria-label': 'Streams' }), log = h('ol', { class: 'log' });
  const labels = h('div', { class: 'st st-head', role: 'row' }, ['Resource', 'State', 'Position', 'Last 3 min', 'Events', 'Received', 'Resumed', 'Relisted'].map((t, i) => h('span', { role: 'columnheader', class: i === 2 || i > 3 ? 'num' : '' }, t)));
  list.append(labels);
  const el = h('section', { class: 'view conn', 'aria-label': 'Connection' },
    h('section', { class: 'panel p-conn' }, head),
    h('div', { class: 'ccols' },
      h('section', { class: 'panel p-streams' }, h('header', {}, h('h2', {}, 'Streams'), h('span', { class: 'sub' }, 'one watch for each kind, all over one connection')), list),
      h('section', { class: 'panel p-log' }, h('header', {}, h('h2', {}, 'What happened')), log)));
  function draw() {
    const c = { live: css('--ph-running'), lost: css('--ph-pending'), relist: css('--ph-terminating'), line: css('--line') }, now = Date.now();
    for (const [id, s] of live.streams) {
      let r = rows.get(id);
      if (!r) {
        r = { st: h('span', { role: 'cell', class: 'stst' }), rev: h('span', { role: 'cell', class: 'num tnum' }), cv: h('canvas', { 'aria-hidden': 'true' }), ev: h('span', { role: 'cell', class: 'num tnum' }), by: h('span', { role: 'cell', class: 'num tnum' }), re: h('span', { role: 'cell', class: 'num tnum' }), rl: h('span', { role: 'cell', class: 'num tnum' }) };
        r.lane = h('span', { role: 'cell', class: 'lane' }, r.cv);
        r.el = h('div', { class: 'st', role: 'row' }, h('a', { role: 'cell', href: s.spec.plural ? '#/t/' + (s.spec.counted || s.spec.of || s.spec.plural) : '#/river' }, (s.spec.counted || s.spec.of || s.spec.plural || 'river') + (s.spec.as === 'table' ? ', table' : s.spec.query?.fieldSelector ? ', one object' : '')), r.st, r.rev, r.lane, r.ev, r.by, r.re, r.rl);
        rows.set(id, r); list.append(r.el);
      }
      if (r.state !== s.state) { r.state = s.state; fill(r.st, h('span', { class: 'cdot c-' + DOT[s.state] }), WORD[s.state]); }
      text(r.rev, s.rv ? num(+s.rv) : '–'); text(r.ev, num(s.events)); text(r.by, bytes(s.bytes)); text(r.re, s.resumes); text(r.rl, s.relists);
      const w = r.lane.clientWidth, g = sized(r.cv, w, 12), x = (t) => w - ((now - t) / SPAN) * w;
      g.fillStyle = c.line; g.fillRect(0, 5.5, w, 1);
      for (const p of spans.get(id) || []) {
        const a = Math.max(0, x(p.from)), b = x(p.to || now); if (b < 0) continue;
        if (p.state === 'live') { g.fillStyle = c.live; g.beginPath(); g.roundRect(a, 4, Math.max(1, b - a), 4, 2); g.fill(); } else if (p.state === 'relist') { g.fillStyle = c.relist; g.fillRect(a, 0, Math.max(3, b - a), 12); } else { g.strokeStyle = c.lost; g.lineWidth = 1.5; g.setLineDash([3, 2]); g.beginPath(); g.moveTo(a + 1, 6); g.lineTo(b - 1, 6); g.stroke(); g.setLineDash([]); }
      }
    }
    for (const [id, r] of rows) if (!live.streams.has(id)) { r.el.remove(); rows.delete(id); }
    const word = { open: 'Connecting', live: 'Live', lost: 'Reconnecting', relist: 'Listing again' }[live.state];
    fill(head, h('div', { class: 'conn-state' }, h('span', { class: 'cdot big c-' + live.state }), h('div', {}, h('h1', {}, word), h('p', { class: 'sub' }, live.state === 'live' ? `Every change up to revision ${num(live.rev)} is on this page.` : live.state === 'open' ? 'Waiting for the server.' : live.state === 'lost' ? `Held at revision ${num(live.rev)}. Next try in ${ms(Math.max(0, live.retryAt - now))}.` : 'The server no longer keeps the changes since the page was cut off.'))),
      h('dl', { class: 'facts' }, [['Server', live.session.server || ''], ['Version', live.version], ['You are', live.session.user || 'not known'], ['Streams', num(live.streams.size)]].map(([a, b]) => h('div', {}, h('dt', {}, a), h('dd', {}, b)))));
  }
  function logs() {
    fill(log, live.log.length ? live.log.map((n) => h('li', {}, h('time', { class: 'tnum' }, clockTime(n.t)), h('span', { class: 'cdot c-' + { lost: 'lost', relist: 'relist', resumed: 'live', relisted: 'live', open: 'live' }[n.kind] }), h('div', {}, h('b', {}, n.text), h('span', { class: 'msg' }, n.detail)))) : h('li', { class: 'quiet' }, 'Nothing yet.'));
  }
  stop.push(on((m) => { if (m.conn) { draw(); logs(); } if (m.second) draw(); }));
  const t = setInterval(() => { if (live.state === 'lost') draw(); }, 250);
  return { el, title: 'Connection', theme: draw, ready() { draw(); logs(); }, destroy() { clearInterval(t); stop.forEach((f) => f()); } };
}
