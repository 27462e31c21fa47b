// Views of the same bytes as tabs (WAI-ARIA Authoring Practices, Tabs). Without scripts they are listed.
let number = 0;

export function tabs(main) {
  for (const group of main.querySelectorAll("[data-tabs]")) {
    const panels = [...group.querySelectorAll("[data-tab]")];
    const list = document.createElement("div");
    list.role = "tablist";
    list.className = "tablist";
    list.setAttribute("aria-label", `Views: ${group.dataset.tabs}`);
    const buttons = panels.map((panel) => {
      const button = document.createElement("button");
      const id = `tab${number++}`;
      button.type = "button";
      button.id = id;
      button.role = "tab";
      button.textContent = panel.dataset.tab;
      panel.id = `${id}-panel`;
      panel.role = "tabpanel";
      panel.setAttribute("aria-labelledby", id);
      button.setAttribute("aria-controls", panel.id);
      return button;
    });
    const choose = (chosen, focus) => {
      buttons.forEach((button, at) => {
        button.setAttribute("aria-selected", String(at === chosen));
        button.tabIndex = at === chosen ? 0 : -1;
        panels[at].hidden = at !== chosen;
      });
      if (focus) buttons[chosen].focus();
    };
    buttons.forEach((button, at) => {
      button.addEventListener("click", () => choose(at, false));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) choose((at + step + buttons.length) % buttons.length, true);
      });
    });
    list.append(...buttons);
    group.prepend(list);
    choose(0, false);
  }
}
