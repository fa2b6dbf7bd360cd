// The river: what the server shows of itself.
import { h } from './dom.js';

export function river() {
  return { title: 'River', el: h('section', { class: 'view' }, h('div', { class: 'state' }, h('div', { class: 'big' }, '~'), h('h2', {}, 'This server does not show its river'), h('p', {}, 'Everything else on this page works.'))) };
}
