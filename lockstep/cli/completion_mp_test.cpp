// The scripts in real shells, and the man pages in real formatters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "lockstep/cli/cli_test_support.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::cli {
namespace completion_mp_test {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using namespace cli_test_support;  // NOLINT: a test's own helpers

bool installed(const std::string& program) {
  try {
    find_program(program);
    return true;
  } catch (const LaunchError&) {
    return false;
  }
}

// Each script is made once: the programs with libtorch take a second to answer.
const std::string& script_of(const std::string& shell) {
  static std::map<std::string, std::string> scripts;
  const auto [it, fresh] = scripts.emplace(shell, "");
  if (!fresh) return it->second;
  const Ended ended = lockstep({"completion", shell});
  EXPECT_EQ(ended.code, 0) << ended.err;
  return it->second = ended.out;
}

std::string quoted_words(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "'" : " '") + word + "'";
  return text;
}

class BashCompletion : public testing::Test {
 protected:
  // What bash offers for the last word.
  Words offered(const Words& words) {
    folder_.write("script", script_of("bash"));
    const std::string code =
        "cd \"$1\" && . ./script && COMP_WORDS=(lockstep " + quoted_words(words) +
        ") && COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _lockstep 2> /dev/null; "
        "printf '%s\\n' \"${COMPREPLY[@]}\"";
    const Ended ended = run({"bash", "--norc", "-c", code, "bash", folder_.path().string()});
    EXPECT_EQ(ended.code, 0) << ended.err;
    Words offers = lines_of(ended.out);
    std::erase(offers, "");  // printf's line where there is nothing
    return offers;
  }
  TestDirectory folder_;
};

TEST_F(BashCompletion, IsRegistered) {
  folder_.write("script", script_of("bash"));
  const Ended ended = run({"bash", "--norc", "-c", ". \"$1\" && complete -p lockstep", "bash",
                           (folder_.path() / "script").string()});
  EXPECT_EQ(ended.out, "complete -F _lockstep lockstep\n") << ended.err;
}

TEST_F(BashCompletion, CommandsOptionsAndValues) {
  EXPECT_THAT(offered({"ru"}), ElementsAre("run"));
  EXPECT_THAT(offered({""}), AllOf(Contains("train"), Contains("doctor"), Contains("completion")));
  EXPECT_THAT(offered({"run", "--on-f"}), ElementsAre("--on-failure"));
  EXPECT_THAT(offered({"run", "--host"}), UnorderedElementsAre("--host", "--hosts", "--hostfile"));
  EXPECT_THAT(offered({"completion", ""}), UnorderedElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(offered({"run", "-np", "2", "--grace", "3", "--trace-"}), ElementsAre("--trace-dir"))
      << "values are no program";
  EXPECT_THAT(offered({"run", "-H", "a", ":", "2", "--trace-"}), ElementsAre("--trace-dir"))
      << "bash takes a:2 for three words";
  EXPECT_THAT(offered({"run", "-np", "2", "./train", "--on-f"}), testing::IsEmpty())
      << "the program's own words";
}

TEST_F(BashCompletion, FilesAndFolders) {
  folder_.write("file", "");
  std::filesystem::create_directory(folder_.path() / "folder");
  EXPECT_THAT(offered({"run", "--hostfile", "f"}), UnorderedElementsAre("file", "folder"));
  EXPECT_THAT(offered({"run", "--log-dir", "f"}), ElementsAre("folder"));
  EXPECT_THAT(offered({"run", "--log-dir", "=", "f"}), ElementsAre("folder"))
      << "bash takes --log-dir=f for three words";
}

// Through the other program, which has libtorch.
TEST_F(BashCompletion, CommandsWithLibtorchHaveTheirOwnOptions) {
  EXPECT_THAT(offered({"train", ""}), AllOf(Contains("mnist"), Contains("lm")));
  EXPECT_THAT(offered({"train", "mnist", "--batch"}), Contains("--batch-size"));
  EXPECT_THAT(offered({"train", "mnist", "--on-failure", ""}),
              UnorderedElementsAre("stop", "restart", "replace", "shrink"));
  EXPECT_THAT(offered({"train", "lm", "--cont"}), Contains("--context"));
  EXPECT_THAT(offered({"checkpoint", ""}), Contains("inspect"));
}

TEST(ZshCompletion, OffersTheSameWords) {
  if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  const TestDirectory folder;
  folder.write("script", script_of("zsh"));
  const auto offered = [&](const Words& words) {
    const std::string code =
        "compdef() { :; }; compadd() { shift; print -l -- $@; }; _describe() { "
        "print -l -- $reply; }; compset() { :; }; _files() { print files $@; }; "
        "source $1; words=(lockstep " +
        quoted_words(words) + "); CURRENT=$#words; _lockstep";
    const Ended ended = run({"zsh", "-f", "-c", code, "zsh", (folder.path() / "script").string()});
    EXPECT_EQ(ended.err, "");
    return lines_of(ended.out);
  };
  EXPECT_THAT(offered({""}), AllOf(Contains("run"), Contains("train")));
  EXPECT_THAT(offered({"run", "-np", "2", "-"}),
              Contains("--report-bindings:Say which processors each rank has"));
  EXPECT_THAT(offered({"run", "--log-dir", ""}), ElementsAre("files -/"));
  EXPECT_THAT(offered({"train", "mnist", "--on-failure", ""}),
              ElementsAre("stop", "restart", "replace", "shrink"));
}

TEST(FishCompletion, OffersTheSameWords) {
  if (!installed("fish")) GTEST_SKIP() << "fish is not installed";
  const TestDirectory folder;
  folder.write("script", script_of("fish"));
  const auto offered = [&](const std::string& line) {
    const Ended ended = run({"fish", "--no-config", "-c",
                             "source " + (folder.path() / "script").string() +
                                 "; complete -C 'lockstep " + line + "'"});
    EXPECT_EQ(ended.err, "");
    Words words;
    for (const std::string& each : lines_of(ended.out))
      words.push_back(each.substr(0, each.find('\t')));
    return words;
  };
  EXPECT_THAT(offered("ru"), ElementsAre("run"));
  EXPECT_THAT(offered("run --on-f"), ElementsAre("--on-failure"));
  EXPECT_THAT(offered("run -np 2 --report-b"), ElementsAre("--report-bindings"));
  EXPECT_THAT(offered("train mnist --on-failure re"), UnorderedElementsAre("restart", "replace"));
  EXPECT_THAT(offered("run ./train --on-f"), testing::IsEmpty()) << "the program's own words";
}

TEST(Completion, AWrongShellIsOneLine) {
  const Ended ended = lockstep({"completion", "tcsh"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("tcsh"), HasSubstr("bash, zsh or fish")));
}

// All pages, written once.
class ManPages : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestDirectory;
    ended_ = lockstep({"man", "--output", folder_->path().string()});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override { ASSERT_EQ(ended_.code, 0) << ended_.err; }
  static Words pages() {
    Words paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder_->path()))
      paths.push_back(entry.path().string());
    return paths;
  }
  static inline TestDirectory* folder_ = nullptr;
  static inline Ended ended_;
};

TEST_F(ManPages, ThereIsOneForEachCommandThatIsHere) {
  for (const char* name :
       {"lockstep", "lockstep-run", "lockstep-doctor", "lockstep-plan", "lockstep-completion",
        "lockstep-man", "lockstep-train", "lockstep-train-mnist", "lockstep-checkpoint-inspect"})
    EXPECT_THAT(folder_->read(std::string(name) + ".1"), testing::StartsWith(".TH ")) << name;
  EXPECT_EQ(lockstep({"man", "run"}).out, folder_->read("lockstep-run.1"));
  const Ended none = lockstep({"man", "rnu"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("there is no page lockstep-rnu (did you mean lockstep-run?)"));
}

TEST_F(ManPages, GroffFormatsThemWithoutAWarning) {
  if (!installed("groff")) GTEST_SKIP() << "groff is not installed";
  for (const std::string& page : pages()) {
    const Ended ended = run({"groff", "-man", "-ww", "-Wbreak", "-Tutf8", "-P-cbou", page});
    EXPECT_EQ(ended.code, 0) << page;
    EXPECT_EQ(ended.err, "") << page;
  }
  const Ended text =
      run({"groff", "-man", "-Tutf8", "-P-cbou", (folder_->path() / "lockstep-run.1").string()});
  EXPECT_THAT(text.out, AllOf(HasSubstr("--nproc-per-node"), HasSubstr("EXAMPLES"),
                              HasSubstr("lockstep run --nproc-per-node 2 build/train")));
}

TEST_F(ManPages, MandocFindsNoError) {
  if (!installed("mandoc")) GTEST_SKIP() << "mandoc is not installed";
  for (const std::string& page : pages()) {
    const Ended ended = run({"mandoc", "-T", "lint", "-W", "error", page});
    EXPECT_EQ(ended.code, 0) << page << ": " << ended.out;
  }
}

}  // namespace completion_mp_test
}  // namespace lockstep::inline v0::cli
