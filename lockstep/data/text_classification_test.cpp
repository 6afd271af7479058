#include "lockstep/data/text_classification.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/data/internal/test_gzip.h"

namespace lockstep::inline v0::data {
namespace text_classification_test {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// The rows of one file, labels as numbers 0..9 or "a", "b".
std::vector<TextExample> rows_of(const std::string& ending, const std::string& bytes,
                                 bool need_labels = false) {
  const TestDirectory dir;
  return read_texts(dir.write("x." + ending, bytes), {"a", "b", "2", "3"}, {}, need_labels);
}

std::vector<TextExample> two(const std::string& first, int64_t a, const std::string& second,
                             int64_t b) {
  return {{.text = first, .label = a}, {.text = second, .label = b}};
}

TEST(TextRows, Json) {
  const auto expected = two("一 二", 0, "c\td", 1);
  EXPECT_EQ(rows_of("json", R"([["一 二", 0], ["c\td", "b"]])"), expected);
  EXPECT_EQ(rows_of("json",
                    "\xef\xbb\xbf[{\"text\": \"一 二\", \"label\": \"a\"},"
                    "{\"sentence\": \"c\\td\", \"label\": 1, \"id\": 7}]"),
            expected);
  EXPECT_EQ(rows_of("jsonl", "{\"content\": \"一 二\", \"label\": 0}\r\n\n[\"c\\td\", 1]"),
            expected);
  EXPECT_EQ(
      rows_of("json", "{\"text\": \"一 二\", \"label\": 0}\n{\"text\": \"c\\td\", \"label\": 1}\n"),
      expected);
  EXPECT_EQ(rows_of("json", R"([["x", "y", 1]])"),
            (std::vector<TextExample>{{.text = "x", .pair = "y", .label = 1}}));
  EXPECT_EQ(rows_of("json", R"([{"sentence1": "x", "sentence2": "y"}])"),
            (std::vector<TextExample>{{.text = "x", .pair = "y", .label = -1}}));
  EXPECT_TRUE(rows_of("json", "[]").empty());
}

// The output of Python's json and pandas.
TEST(TextRows, WholeNumbersAsFloatsAndNumbersThatAreNone) {
  EXPECT_EQ(rows_of("jsonl", "{\"text\": \"a\", \"label\": 1.0}\n[\"b\", 0.0]\n"),
            two("a", 1, "b", 0));
  EXPECT_EQ(rows_of("jsonl",
                    "{\"text\": \"NaN \\\"is\\\" NaN\", \"label\": 1, \"score\": NaN}\n"
                    "{\"text\": \"b\", \"x\": [Infinity, -Infinity], \"label\": 0}\n"),
            two("NaN \"is\" NaN", 1, "b", 0));
  EXPECT_EQ(
      rows_of("json", R"([{"text": "a", "label": 2.0, "x": NaN}, {"text": "b", "label": 3}])"),
      two("a", 2, "b", 3));
  // A missing label, as pandas writes it.
  EXPECT_EQ(rows_of("jsonl", "{\"text\": \"a\", \"label\": NaN}"),
            (std::vector<TextExample>{{.text = "a"}}));
}

TEST(TextRows, TabsAndCommas) {
  EXPECT_EQ(rows_of("tsv", "say \"hi\"\t1\r\nx, y\tb\r\n\r\n"), two("say \"hi\"", 1, "x, y", 1));
  EXPECT_EQ(rows_of("tsv", "label\ttext\tsource\n1\tp\tq\n0\tr\ts"), two("p", 1, "r", 0));
  EXPECT_EQ(rows_of("csv", "text,label\r\n\"say \"\"hi\"\", or\nnot\",1\r\nplain,0\r\n"),
            two("say \"hi\", or\nnot", 1, "plain", 0));
  for (const char* header : {"Text,Label\n", "sentence, sentiment\n", "review,label\n"})
    EXPECT_EQ(rows_of("csv", std::string(header) + "p,1\nq,0\n"), two("p", 1, "q", 0)) << header;
  EXPECT_EQ(rows_of("csv", "x,y,1\n\"\",\"z\",2\n"),
            (std::vector<TextExample>{{.text = "x", .pair = "y", .label = 1},
                                      {.text = "", .pair = "z", .label = 2}}));
  EXPECT_EQ(rows_of("csv", "only text\n"), (std::vector<TextExample>{{.text = "only text"}}));
  EXPECT_EQ(rows_of("txt", "one\n\nthree"),
            (std::vector<TextExample>{{.text = "one"}, {.text = ""}, {.text = "three"}}));
  EXPECT_EQ(rows_of("tsv", gzip("x\t1\ny\t0\n")), two("x", 1, "y", 0));
}

TEST(TextRows, BadOnesAreNamedWithTheirLine) {
  const auto line = [](const std::string& ending, const std::string& bytes) {
    const std::string message =
        message_of<DataError>([&] { rows_of(ending, bytes, /*need_labels=*/true); });
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    const size_t name = message.find("x." + ending + ": ");
    return name == std::string::npos ? message : message.substr(name + ending.size() + 4);
  };
  EXPECT_EQ(line("tsv", "a\t0\nb\t9\n"), "line 2 has the label 9; the classes are a, b, 2, 3");
  EXPECT_EQ(line("tsv", "a\t0\nb\tjoy\n"), "line 2 has the label joy; the classes are a, b, 2, 3");
  EXPECT_EQ(line("json", "[[\"a\", 0], [\"b\", 4]]"),
            "row 1 (from 0) has the label 4; the classes are 0 to 3");
  EXPECT_EQ(line("json", "[[\"a\", -1]]"),
            "row 0 (from 0) has the label -1; the classes are 0 to 3");
  EXPECT_EQ(line("json", "[[\"a\", 1.5]]"),
            "row 0 (from 0) has a label that is neither a whole number nor a name");
  EXPECT_EQ(line("json", "[[\"a\"]]"),
            "row 0 (from 0) is a list of 1; give [text, label] or [text, pair, label]");
  EXPECT_EQ(line("json", "[[3, 1]]"), "row 0 (from 0) has no string as the text");
  EXPECT_EQ(line("json", "[\"a\"]"),
            "row 0 (from 0) is neither a list nor an object; give [text, label] or {\"text\": ..., "
            "\"label\": ...}");
  EXPECT_EQ(line("json", "[{\"label\": 1}]"),
            "row 0 (from 0) has no \"text\" (or \"sentence\", \"content\")");
  EXPECT_EQ(line("json", "[\n[\"a\", 0],\n"),
            "line 3 is not JSON (near byte 13); one object a line goes by .jsonl");
  EXPECT_EQ(line("jsonl", "[\"a\", 0]\n{\"text\n"), "line 2 is not JSON; each line is one row");
  EXPECT_EQ(line("jsonl", "{\"text\": \"a\"}\n"),
            "line 1 has no label; only texts to predict may lack one");
  EXPECT_EQ(line("csv", "a,0\n\"b\n,1\n"), "line 2 opens a quote that no line closes");
  EXPECT_EQ(line("csv", "a,0\n\"b\"c,1\n"),
            "line 2 has text after a closing quote; a quote within quotes is written twice");
  EXPECT_EQ(line("csv", "\"a\nb\",0\nc\n"), "line 3 has 1 columns and the rows before it 2");
  EXPECT_EQ(line("tsv", "a\tb\tc\td\n"),
            "line 1 has 4 columns; name them in a first row (text, label), or give text and label, "
            "or text, pair and label");
  EXPECT_EQ(line("jsonl", "[\"a\", \"b\", 0]\n[\"a\", 0]\n"),
            "line 2 has no second text, unlike the rows before it");
  EXPECT_EQ(line("tsv", "a\t0\n\xff\t1\n"), "line 2 is not UTF-8; convert the file to UTF-8");
  EXPECT_EQ(line("xml", "<a/>"), "is no .json, .jsonl, .tsv, .csv or .txt file; give one of these");
}

TEST(TextClassification, SplitsAsPythonShuffles) {
  const TestDirectory dir;
  nlohmann::json rows = nlohmann::json::array();
  for (int i = 0; i < 25; ++i) rows.push_back({std::to_string(i), i % 3});
  dir.write("train.json", rows.dump());
  const TextClassification data = text_classification(dir.path());
  EXPECT_EQ(data.labels, (Names{"0", "1", "2"}));
  // random.seed(123); order = list(range(25)); random.shuffle(order)
  const Names order = {"4", "6",  "11", "9",  "7",  "14", "18", "19", "15", "20", "5", "17", "22",
                       "0", "21", "16", "10", "12", "24", "3",  "23", "13", "2",  "8", "1"};
  ASSERT_EQ(data.train.size(), 23U);
  ASSERT_EQ(data.dev.size(), 2U);
  for (size_t i = 0; i < 25; ++i)
    EXPECT_EQ((i < 23 ? data.train[i] : data.dev[i - 23]).text, order[i]) << i;
  EXPECT_TRUE(data.test.empty());
  // Only the first rows; a single file gives the same as its directory.
  EXPECT_EQ(text_classification(dir / "train.json", {.limit = 10}).train.size(), 9U);
  EXPECT_EQ(text_classification(dir / "train.json", {.train_part = 0.5}).dev.size(), 13U);
  EXPECT_EQ(text_classification(dir / "train.json").train, data.train);
}

TEST(TextClassification, FollowsASplitFile) {
  const TestDirectory dir;
  dir.write("train.tsv", "a\t0\nb\t1\nc\t0\nd\t1\n");
  dir.write("split_seed123.txt", "3\n0\n2\n1\n");
  const TextClassification data = text_classification(dir.path(), {.train_part = 0.5});
  EXPECT_EQ(data.train, two("d", 1, "a", 0));
  EXPECT_EQ(data.dev, two("c", 0, "b", 1));
  EXPECT_EQ(text_classification(dir.path(), {.limit = 2, .train_part = 0.5}).train,
            (std::vector<TextExample>{{.text = "a", .label = 0}}));
  const auto refusal = [&](const std::string& split) {
    dir.write("split_seed123.txt", split);
    return message_of<DataError>([&] { text_classification(dir.path()); });
  };
  for (const auto& [bytes, part] :
       std::vector<std::pair<std::string, std::string>>{{"0\n1\n2\n", "has 3 lines"},
                                                        {"0\n1\n1\n2\n", "line 3 is 1; each"},
                                                        {"0\n4\n", "line 2 is 4; each"},
                                                        {"x\n", "line 1 is x; each"}}) {
    EXPECT_NE(refusal(bytes).find("split_seed123.txt: " + part), std::string::npos)
        << refusal(bytes);
  }
}

TEST(TextClassification, TakesFilesOfItsOwnForDevTestAndLabels) {
  const TestDirectory dir;
  dir.write("train.csv", "x,joy\ny,anger\n");
  dir.write("dev.jsonl", "[\"z\", \"joy\"]\n");
  dir.write("test.tsv", "text\nw\n");
  TextClassification data = text_classification(dir.path());
  EXPECT_EQ(data.labels, (Names{"anger", "joy"}));
  EXPECT_EQ(data.train, two("x", 1, "y", 0));
  EXPECT_EQ(data.dev[0].label, 1);
  EXPECT_EQ(data.test, (std::vector<TextExample>{{.text = "w"}}));
  EXPECT_FALSE(data.pairs);
  dir.write("class.txt", "joy\nfear\nanger");
  EXPECT_EQ(text_classification(dir.path()).labels, (Names{"joy", "fear", "anger"}));
  dir.write("labels.txt", " joy \r\nanger\r\n");
  data = text_classification(dir.path());
  EXPECT_EQ(data.labels, (Names{"joy", "anger"}));
  EXPECT_EQ(data.classes(), 2);
  EXPECT_EQ(text_classification(dir.path(), {.labels = {"anger", "joy"}}).train[0].label, 1);
  dir.write("labels.txt", "joy\njoy\n");
  EXPECT_NE(message_of<DataError>([&] {
              text_classification(dir.path());
            }).find("labels.txt: line 2 has the class joy again"),
            std::string::npos);
}

// The names that the datasets library and others use; a second file for the same part is reported,
// not ignored.
TEST(TextClassification, TheDevSetHasAnyOfItsNames) {
  for (const char* name : {"dev", "validation", "valid", "val", "eval"}) {
    const TestDirectory dir;
    dir.write("train.jsonl", "[\"x\", 0]\n[\"y\", 1]\n");
    dir.write(std::string(name) + ".jsonl", "[\"z\", 1]\n");
    for (const char* other : {"vocab.txt", "labels.json", "train-2.json", "extra.csv", "test.txt"})
      dir.write(other, "");
    const TextClassification data = text_classification(dir.path());
    EXPECT_EQ(data.train, two("x", 0, "y", 1)) << name;
    EXPECT_EQ(data.dev, (std::vector<TextExample>{{.text = "z", .label = 1}})) << name;
    EXPECT_FALSE(data.dev_of_train);
    EXPECT_EQ(data.unread, (Names{"extra.csv", "test.txt", "train-2.json"}));
  }
}

TEST(TextClassification, NamesThatAreNumbersComeFirst) {
  const TestDirectory dir;
  dir.write("train.tsv", "x\t2\ny\t1\n");
  dir.write("dev.tsv", "x\t2\n");
  EXPECT_EQ(text_classification(dir.path(), {.labels = {"1", "2"}}).train, two("x", 1, "y", 0));
  dir.write("train.json", "[[\"x\", 1], [\"y\", 0]]");  // JSON's numbers are never names
  EXPECT_EQ(text_classification(dir.path(), {.labels = {"1", "0", "2"}}).train,
            two("x", 1, "y", 0));
}

TEST(TextClassification, MissingAndEmptyPartsAreNamed) {
  const TestDirectory dir;
  const auto refusal = [&] {
    return message_of<DataError>([&] { text_classification(dir.path()); });
  };
  EXPECT_NE(refusal().find("has no train.json, train.jsonl, train.tsv or train.csv"),
            std::string::npos);
  dir.write("train.json", "[]");
  EXPECT_NE(refusal().find("has 0 rows, which leaves none for training"), std::string::npos);
  dir.write("train.json", "[[\"a\", 0]]");
  EXPECT_NE(refusal().find("has 1 rows, which leaves none for training"), std::string::npos)
      << refusal();
  dir.write("dev.json", "[[\"a\", \"c\", 0]]");
  EXPECT_NE(refusal().find("dev.json: row 0 (from 0) has a second text, unlike the training rows"),
            std::string::npos)
      << refusal();
  EXPECT_THROW(text_classification(dir / "none.json"), DataError);
  EXPECT_THROW(text_classification(dir.path(), {.limit = -1}), InvalidArgument);
  EXPECT_THROW(text_classification(dir.path(), {.train_part = 1}), InvalidArgument);
}

TEST(TextPreprocessing, RemovesSpacesAndStripsAsPythonDoes) {
  const TextPreprocessing both{.remove_spaces = true, .strip = true};
  EXPECT_EQ(both.apply(" 今 天\u3000很 好 \n"), "今天\u3000很好");
  EXPECT_EQ(TextPreprocessing{.strip = true}.apply("\u3000\x1c a b\u2028\u00a0"), "a b");
  EXPECT_EQ(TextPreprocessing{.strip = true}.apply(" \u200b "), "\u200b");  // not a space in Python
  EXPECT_EQ(TextPreprocessing{.strip = true}.apply(" \n"), "");
  EXPECT_EQ(TextPreprocessing{}.apply(" a "), " a ");
  EXPECT_EQ(json_of(both).dump(), "{\"remove_spaces\":true,\"strip\":true}");
  EXPECT_EQ(text_preprocessing(json_of(both)), both);
  EXPECT_EQ(text_preprocessing(nlohmann::ordered_json::object()), TextPreprocessing{});
  EXPECT_THROW(text_preprocessing({{"stem", true}}), DataError);
  EXPECT_THROW(text_preprocessing({{"strip", 1}}), DataError);
  EXPECT_THROW(text_preprocessing("x"), DataError);
}

TEST(TextClassification, TheEmotionsOfTheTutorial) {
  const char* root = std::getenv("LOCKSTEP_DATA");
  const fs::path path =
      fs::path(root ? root : LOCKSTEP_SOURCE_DIR "/../shared/data") / "emotion-zh";
  if (!fs::exists(path))
    GTEST_SKIP() << "no emotion-zh directory; set LOCKSTEP_DATA to the directory that has it";
  const TextDataOptions options{.preprocessing = {.remove_spaces = true, .strip = true}};
  const TextClassification data = text_classification(path, options);
  ASSERT_EQ(data.train.size(), 9200U);
  ASSERT_EQ(data.dev.size(), 800U);
  EXPECT_EQ(data.classes(), 6);
  std::vector<int> train(6), dev(6);
  for (const TextExample& example : data.train) ++train[static_cast<size_t>(example.label)];
  for (const TextExample& example : data.dev) ++dev[static_cast<size_t>(example.label)];
  EXPECT_EQ(train, (std::vector<int>{3207, 1551, 1213, 1406, 709, 1114}));
  EXPECT_EQ(dev, (std::vector<int>{273, 112, 114, 120, 62, 119}));
  // The split file contains the shuffle's result.
  const TextClassification shuffled = text_classification(path / "train.json", options);
  EXPECT_EQ(shuffled.train, data.train);
  EXPECT_EQ(shuffled.dev, data.dev);
}

}  // namespace text_classification_test
}  // namespace lockstep::inline v0::data
