// Light or dark: what the system prefers, until the reader chooses; the choice is kept where the browser keeps any.

const THEME = "stepscope-theme";

function keptTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

function keepTheme(name) {
  try {
    localStorage.setItem(THEME, name);
  } catch {
    // A page without storage forgets it on reload.
  }
}

const chosen = keptTheme();
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

const isDark = () => {
  const said = document.documentElement.dataset.theme;
  return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function changeTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  keepTheme(isDark() ? "dark" : "light");
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  redraws.forEach((draw) => draw());
}

// Paper is light, pictures too.
let onScreen = document.documentElement.dataset.theme;
addEventListener("beforeprint", () => {
  onScreen = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  redraws.forEach((draw) => draw());
});
addEventListener("afterprint", () => {
  if (onScreen) document.documentElement.dataset.theme = onScreen;
  else delete document.documentElement.dataset.theme;
  redraws.forEach((draw) => draw());
});
