"use strict";
(() => {
  const all = (what, from = document) => [...from.querySelectorAll(what)];
  const form = document.querySelector(".controls");
  const search = form.querySelector("[type=search]");
  const colours = all("[type=checkbox]", form);
  const sort = form.querySelector("select");
  const fold = form.querySelector(".fold");
  const entries = all(".card, tbody tr, section > .entries > li, .section > .entries > li");
  const texts = new Map(entries.map((one) => [one, one.textContent.toLowerCase()]));
  const cards = all(".card");

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = new Set(colours.filter((one) => !one.checked).map((one) => one.value));
    for (const one of entries) {
      one.hidden = off.has(one.dataset.tone) || !words.every((word) => texts.get(one).includes(word));
    }
    const shown = cards.filter((one) => !one.hidden).length;
    form.querySelector("output").value = shown < cards.length ? `${shown} of ${cards.length} shown` : "";
  };

  const order = () => {
    const title = (card) => card.querySelector(".title").textContent;
    const compare = {
      order: (a, b) => a.dataset.order - b.dataset.order,
      tests: (a, b) => b.dataset.tests - a.dataset.tests,
      resource: (a, b) => a.dataset.resource.localeCompare(b.dataset.resource),
      title: (a, b) => title(a).localeCompare(title(b)),
    }[sort.value];
    for (const list of all(".cards")) {
      list.append(...[...list.children].sort(compare));
    }
  };

  const foldAll = () => {
    const open = fold.textContent.startsWith("Open");
    for (const one of all("details")) {
      one.open = open;
    }
    fold.textContent = open ? "Fold all" : "Open all";
  };

  const copy = async (button) => {
    const command = button.parentNode.querySelector(".command");
    try {
      await navigator.clipboard.writeText(command.textContent);
    } catch {
      getSelection().selectAllChildren(command);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  const openTarget = () => {
    const card = document.getElementById(location.hash.slice(1));
    if (card) {
      card.open = true;
      card.scrollIntoView();
    }
  };

  search.addEventListener("input", filter);
  colours.forEach((one) => one.addEventListener("change", filter));
  sort.addEventListener("change", order);
  fold.addEventListener("click", foldAll);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of all(".copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  addEventListener("hashchange", openTarget);
  form.hidden = cards.length < 2;
  openTarget();
})();
