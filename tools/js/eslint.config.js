// The pages' scripts are put together into one by page.py: names of one file are used in another, which is what the
// type checker looks after. The linter looks at each file.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2023, sourceType: "script", globals: globals.browser },
    rules: {
      "no-undef": "off", // across files: the type checker
      "no-unused-vars": ["error", { vars: "local", args: "after-used", argsIgnorePattern: "^_" }],
      "no-unused-expressions": ["error", { allowShortCircuit: true, allowTernary: true }],
      "no-self-compare": "off", // NaN
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-var": "error",
      "prefer-const": "error",
      eqeqeq: "error",
      // Names in traces are untrusted: they become text, never markup.
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML", "write", "writeln"].map((property) => ({ property })),
      ],
    },
  },
];
