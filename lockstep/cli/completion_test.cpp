// A command's options as data, shortened options, and what is made of the data: scripts of shells and
// man pages.
#include "lockstep/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/manual.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/option_table.h"
#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/run/flags.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli {
namespace completion_test {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

struct Given {
  int batch_size = 0, batches = 0, secret = 0;
  std::string text;
  Words extras;
  bool quiet = false;
};

Given parsed(const Words& words, bool extras = false) {
  Given given;
  CLI::App app("", "lockstep thing");
  if (extras) app.allow_extras();
  app.add_option("-b,--batch-size,--batch-samples", given.batch_size);
  app.add_option("--batches", given.batches);
  app.add_option("--secret", given.secret)->group("");
  app.add_option("--text", given.text)->type_name("TEXT");
  app.add_flag("--quiet", given.quiet);
  parse_options(app, words);
  given.extras = app.remaining();
  return given;
}

std::string refusal(const Words& words) {
  return message_of<UsageError>([&] { parsed(words); });
}

TEST(ShortenedOptions, MeanTheOneThatTheyBegin) {
  EXPECT_EQ(parsed({"--batch-", "3"}).batch_size, 3) << "two names of one option";
  EXPECT_EQ(parsed({"--batch_si=3"}).batch_size, 3);
  EXPECT_EQ(parsed({"--batches", "3"}).batches, 3);
  EXPECT_TRUE(parsed({"--q"}).quiet);
  EXPECT_EQ(refusal({"--batch", "3"}),
            "the option --batch may mean --batch-size, --batches; write more of it; see lockstep "
            "thing --help");
  EXPECT_EQ(refusal({"--sec", "3"}), "unknown option --sec; see lockstep thing --help")
      << "a hidden one is written in full";
  EXPECT_EQ(parsed({"--secret", "3"}).secret, 3);
}

TEST(ShortenedOptions, ValuesStayAsTheyAre) {
  EXPECT_EQ(parsed({"--text", "--batch_size"}).text, "--batch_size");
  EXPECT_EQ(parsed({"--te=--a_b"}).text, "--a_b");
  const Given given = parsed({"-b", "3", "--quiet"});
  EXPECT_EQ(given.batch_size, 3);
  EXPECT_TRUE(given.quiet);
}

// What is passed on is the other command's, which knows its own options.
TEST(ShortenedOptions, ACommandThatPassesOptionsOnWantsItsOwnInFull) {
  const Given given = parsed({"--batch-s", "3", "--batch_size", "4"}, true);
  EXPECT_EQ(given.batch_size, 4);
  EXPECT_THAT(given.extras, ElementsAre("--batch-s", "3"));
}

OptionTable sample() {
  OptionTable table{.command = "lockstep train",
                    .usage = "lockstep train RECIPE [OPTIONS]",
                    .about = "Trains it. On ranks.",
                    .options = {},
                    .footer = "Exit code: 0.\n.hidden\n\nExample:\n  lockstep train a-b --out x\\y",
                    .words = {"mnist", "lm"}};
  table.options = {
      {.names = {"RECIPE"},
       .value = "mnist|lm",
       .about = "what",
       .group = "Data",
       .positional = true,
       .required = true},
      {.names = {"-o", "--out"}, .value = "DIR", .about = "where it's put: there", .group = "Data"},
      {.names = {"--way"}, .value = "stop|restart", .about = "how", .group = "Ranks"},
      {.names = {"--config"}, .value = "FILE", .about = "settings", .group = "Ranks"},
      {.names = {"--epochs"}, .value = "N", .about = "so many", .group = "Ranks"},
      {.names = {"--quiet"}, .value = "", .about = "no summary", .group = "Ranks"}};
  return table;
}

TEST(OptionTable, SurvivesTheWayFromOneProgramToAnother) {
  EXPECT_EQ(table_from_json(to_json(sample())), sample());
  EXPECT_THROW(table_from_json("Usage: lockstep train"), DataError);
  EXPECT_THROW(table_from_json("{}"), DataError);
}

TEST(OptionTable, IsWhatTheHelpSays) {
  for (const auto& [table, help] :
       {std::pair{run_table(), run_help()}, std::pair{doctor_table(), doctor_help()},
        std::pair{plan_table(), plan_help()}, std::pair{completion_table(), completion_help()},
        std::pair{manual_table(), manual_help()}}) {
    EXPECT_THAT(help, testing::StartsWith("Usage: " + table.usage + "\n"));
    ASSERT_FALSE(table.options.empty());
    for (const OptionRow& option : table.options) {
      EXPECT_THAT(help, HasSubstr(option.names.back())) << table.command;
      EXPECT_FALSE(option.about.empty()) << option.names.back();
    }
  }
}

TEST(OptionTable, KnowsWhatAnOptionTakes) {
  const OptionTable table = sample();
  EXPECT_THAT(choices_of(table.options[2]), ElementsAre("stop", "restart"));
  EXPECT_THAT(choices_of({.names = {}, .value = "[true|false]", .about = "", .group = ""}),
              ElementsAre("true", "false"));
  EXPECT_THAT(choices_of({.names = {}, .value = "mini|base|DIR", .about = "", .group = ""}),
              ElementsAre("mini", "base"));
  EXPECT_TRUE(takes_folder(table.options[1]));
  EXPECT_TRUE(takes_file(table.options[3]));
  EXPECT_FALSE(takes_file(table.options[4]) || takes_folder(table.options[4]));
}

TEST(OptionTable, OfRunHasEverySpelling) {
  const OptionTable table = run_table();
  const auto has = [&](const std::string& name) {
    return std::any_of(table.options.begin(), table.options.end(), [&](const OptionRow& option) {
      return std::find(option.names.begin(), option.names.end(), name) != option.names.end();
    });
  };
  for (const char* name : {"-np", "-n", "--nproc-per-node", "-H", "--hostfile", "--bind-to",
                           "--num-processes", "--include", "--help"})
    EXPECT_TRUE(has(name)) << name;
  for (const char* name : {"--min-np", "--mca", "--local-addr", "--logs-specs"})
    EXPECT_FALSE(has(name)) << name << " is known, and of no use";
}

TEST(Completion, ScriptsNameEveryOptionAndChoice) {
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    const std::string script = completion_script(shell, {sample()});
    for (const char* word : {"out", "way", "config", "epochs", "quiet", "stop restart", "mnist"})
      EXPECT_THAT(script, HasSubstr(word));
    EXPECT_THAT(script, Not(HasSubstr("RECIPE")));
  }
  EXPECT_THAT(completion_script(Shell::kFish, {sample()}), HasSubstr("-d 'where it\\'s put'"));
  EXPECT_THAT(completion_script(Shell::kZsh, {sample()}), HasSubstr("'--out:where it'\\''s put'"));
}

TEST(ManPage, TakesItsTextsFromTheTableAndEscapesThem) {
  const std::string page = man_page(sample(), "train a model", {"lockstep", "lockstep-train-lm"});
  EXPECT_THAT(page, testing::StartsWith(".TH LOCKSTEP\\-TRAIN 1 "));
  EXPECT_THAT(page, HasSubstr("lockstep\\-train \\- train a model\n"));
  EXPECT_THAT(page, HasSubstr("\\fBlockstep train\\fR RECIPE [OPTIONS]\n"));
  EXPECT_THAT(page, HasSubstr(".SS Ranks\n.TP\n\\fB\\-\\-way\\fR \\fIstop|restart\\fR\nhow\n"));
  EXPECT_THAT(page, HasSubstr("(required) what\n"));
  EXPECT_THAT(page, HasSubstr("\\&.hidden\n")) << "no request of its own";
  EXPECT_THAT(page, HasSubstr(".nf\nlockstep train a\\-b \\-\\-out x\\ey\n.fi\n"));
  EXPECT_THAT(page, HasSubstr(".BR lockstep\\-train\\-lm (1)"));
  for (const Command& command : commands())
    EXPECT_THAT(overview_page(), HasSubstr(std::string("\n\\fB") + command.name + "\\fR\n"));
}

}  // namespace completion_test
}  // namespace lockstep::inline v0::cli
