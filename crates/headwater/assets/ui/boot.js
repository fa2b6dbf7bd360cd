// Sets the theme before the first paint.
(() => {
  const root = document.documentElement, dark = matchMedia('(prefers-color-scheme: dark)');
  let own = null;
  try { own = localStorage.getItem('hw-theme'); } catch { /* storage is off */ }
  const set = () => { root.dataset.theme = own || (dark.matches ? 'dark' : 'light'); };
  set();
  dark.addEventListener('change', set);
})();
