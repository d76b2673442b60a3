// Light or dark: what the system prefers, until the reader chooses.

const isDark = () => {
  const said = document.documentElement.dataset.theme;
  return said ? said === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function changeTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  redraws.forEach((draw) => draw());
}
