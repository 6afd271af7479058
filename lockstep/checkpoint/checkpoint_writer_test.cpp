#include "lockstep/checkpoint/checkpoint_writer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/reshard.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::checkpoint_writer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kElements = 1000;

// The share of rank `rank`: a parameter of its own, and its part of a state that all ranks share.
Checkpoint share_of(int rank, int ranks, int number) {
  Checkpoint share;
  share.model.tensors = {
      {"layer" + std::to_string(rank) + ".weight", at::full({3, 5}, number + rank, at::kInt)}};
  const int64_t begin = kElements * rank / ranks, end = kElements * (rank + 1) / ranks;
  share.optimizer.metadata = {{"optimizer", "AdamW"}};
  share.optimizer.tensors["0.exp_avg"] = slice_of(
      {10, 100}, {100, 1}, begin, at::arange(begin, end, at::kInt).add_(number * kElements));
  if (rank != 0) return share;
  share.optimizer.tensors["0.step"] = slice_of({}, {}, 0, at::full({1}, number, at::kLong));
  share.ranks.tensors = {{"cpu_generator", at::full({ranks, 4}, number, at::kInt)}};
  share.trainer_json = std::to_string(number);
  share.config_json = "{}";
  share.files = {{"vocab.txt", "a\n"}};
  return share;
}

// read_checkpoint() compares every checksum.
int number_of(const fs::path& path, int ranks) {
  const Checkpoint checkpoint = read_checkpoint(path);
  const int number = std::stoi(checkpoint.trainer_json);
  EXPECT_EQ(checkpoint.model.tensors.size(), static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    const at::Tensor* weight = checkpoint.model.find("layer" + std::to_string(r) + ".weight");
    EXPECT_TRUE(weight != nullptr && weight->eq(number + r).all().item<bool>()) << r;
  }
  const Safetensors optimizer = checkpoint.optimizer.whole();
  EXPECT_EQ(optimizer.metadata.at("optimizer"), "AdamW");
  EXPECT_EQ(optimizer.find("0.step")->item<int64_t>(), number);
  const at::Tensor expected =
      at::arange(kElements, at::kInt).add_(number * kElements).view({10, 100});
  EXPECT_TRUE(optimizer.find("0.exp_avg")->equal(expected));
  return number;
}

TEST(CheckpointWriter, RanksWriteOneCheckpoint) {
  for (const int ranks : {1, 2, 3, 4}) {
    const TestDirectory dir;
    const fs::path path = dir / "c";
    testing::run_threads(ranks, [&](Communicator& comm) {
      write_checkpoint(comm, path, share_of(comm.rank(), ranks, 7));
      EXPECT_EQ(number_of(path, ranks), 7) << "on every rank, at once";
      comm.barrier();
      write_checkpoint(comm, path, share_of(comm.rank(), ranks, 8));
    });
    EXPECT_EQ(number_of(path, ranks), 8);
    EXPECT_EQ(dir.names(), std::vector<std::string>{"c"});
    for (const auto& [file, verdict] : verify_checkpoint(path))
      EXPECT_EQ(verdict, FileVerdict::kGood) << file;
    EXPECT_EQ(fs::exists(path / "model.safetensors"), ranks == 1);
    if (ranks == 1) continue;
    const std::string last = "-0000" + std::to_string(ranks) + "-of-0000" + std::to_string(ranks);
    EXPECT_TRUE(fs::exists(path / ("optimizer" + last + ".safetensors")));
    const auto index = nlohmann::json::parse(dir.read("c/model.safetensors.index.json"));
    EXPECT_EQ(index["weight_map"]["layer1.weight"].get<std::string>().substr(0, 12),
              "model-00002-");
    EXPECT_EQ(index["metadata"]["total_size"], 60 * ranks);
  }
}

// Each rank has columns of a matrix and a part of the state of its columns; rank 0 also has a
// vector.
Checkpoint columns_of(int rank, int ranks, int number) {
  Checkpoint share = share_of(rank, ranks, number);
  const int64_t begin = 12 * rank / ranks, end = 12 * (rank + 1) / ranks;
  const at::Tensor matrix = at::arange(96, at::kInt).view({8, 12}).add(number);
  const TensorBox box{{0, begin}, {8, end}};
  const at::Tensor flat = matrix.narrow(1, begin, end - begin).contiguous().view({-1});
  share.model.tensors.clear();
  share.model_slices.tensors.emplace("matrix", slice_of({8, 12}, {12, 1}, 0, flat, box));
  share.model_slices.metadata = {{"format", "pt"}};
  share.optimizer.tensors.emplace("matrix.exp_avg", slice_of({8, 12}, {12, 1}, 0, flat, box));
  if (rank == 0) share.model.tensors = {{"vector", at::full({5}, number, at::kInt)}};
  return share;
}

// What a rank has for itself is in a file of its own.
TEST(CheckpointWriter, EachRankMayHaveFurtherTensors) {
  for (const bool snapshot : {false, true}) {
    const TestDirectory dir;
    testing::run_threads(3, [&](Communicator& comm) {
      const auto write = [&](const std::string& name) {
        Checkpoint share = share_of(comm.rank(), 3, 4);
        if (comm.rank() > 0 || name == "same")
          share.tensors[name] = {.tensors = {{"mine", at::full({2}, comm.rank(), at::kInt)}},
                                 .metadata = {{"rank", std::to_string(comm.rank())}}};
        write_checkpoint(comm, dir / "c", share, {.snapshot = snapshot});
      };
      write("of-" + std::to_string(comm.rank()));
      EXPECT_THAT(message_of<Error>([&] { write("same"); }),
                  HasSubstr("two ranks write the file 'same.safetensors'"));
      EXPECT_THAT(message_of<Error>([&] { write("../other"); }),
                  HasSubstr("cannot be the name of a further part"));
    });
    const Checkpoint found = read_checkpoint(dir / "c");
    EXPECT_EQ(found.tensors.size(), 2u);
    for (const int rank : {1, 2}) {
      const Safetensors& own = found.tensors.at("of-" + std::to_string(rank));
      EXPECT_TRUE(own.find("mine")->equal(at::full({2}, rank, at::kInt)));
      EXPECT_EQ(own.metadata.at("rank"), std::to_string(rank));
    }
    EXPECT_EQ(number_of(dir / "c", 3), 4);
  }
}

TEST(CheckpointWriter, ADividedModelIsWrittenInSlices) {
  for (const int ranks : {1, 2, 3, 4}) {
    const TestDirectory dir;
    testing::run_threads(ranks, [&](Communicator& comm) {
      write_checkpoint(comm, dir / "c", columns_of(comm.rank(), ranks, 3), {.snapshot = true});
    });
    const at::Tensor matrix = at::arange(96, at::kInt).view({8, 12}).add(3);
    const Checkpoint whole = read_checkpoint(dir / "c");
    EXPECT_TRUE(whole.model.find("matrix")->equal(matrix));
    EXPECT_TRUE(whole.model.find("vector")->eq(3).all().item<bool>());
    EXPECT_EQ(whole.model.metadata.at("format"), "pt");
    EXPECT_TRUE(whole.optimizer.find("matrix.exp_avg")->whole().equal(matrix));
    const Checkpoint slices = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
    EXPECT_TRUE(slices.model.tensors.empty());
    EXPECT_TRUE(slices.model_slices.find("matrix")->whole().equal(matrix));
    EXPECT_EQ(slices.model_slices.find("matrix")->slices.size(), static_cast<size_t>(ranks));
    EXPECT_TRUE(checkpoint_exists(dir / "c"));
    // A single rank writes the ordinary file.
    EXPECT_EQ(fs::exists(dir / "c/model.slices.json"), ranks > 1);
    EXPECT_EQ(fs::exists(dir / "c/model.safetensors"), ranks == 1);
    EXPECT_FALSE(fs::exists(dir / "c/model.safetensors.index.json"));
    for (const auto& [file, verdict] : verify_checkpoint(dir / "c"))
      EXPECT_EQ(verdict, FileVerdict::kGood) << file;
    EXPECT_TRUE(read_tensor_file(dir / "c").contents.find("matrix")->equal(matrix));
    // Whole files again, and files of whole tensors.
    for (const int files : {1, 2}) {
      reshard_checkpoint(dir / "c", dir / "to", files);
      EXPECT_EQ(fs::exists(dir / "to/model.safetensors"), files == 1);
      EXPECT_FALSE(fs::exists(dir / "to/model.slices.json"));
      const Checkpoint again = read_checkpoint(dir / "to");
      EXPECT_TRUE(again.model.find("matrix")->equal(matrix));
      EXPECT_TRUE(again.optimizer.find("matrix.exp_avg")->whole().equal(matrix));
    }
  }
}

// The output of a pipeline's stages: transformers opens it directly.
TEST(CheckpointWriter, SlicesThatAreWholeTensorsHaveTheCommonIndex) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    Checkpoint share = share_of(comm.rank(), 2, 4);
    share.model_slices = share.model;
    share.model = {};
    write_checkpoint(comm, dir / "c", share);
  });
  EXPECT_EQ(number_of(dir / "c", 2), 4);
  EXPECT_FALSE(fs::exists(dir / "c/model.slices.json"));
  const auto index = nlohmann::json::parse(dir.read("c/model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"]["layer1.weight"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(index["metadata"]["total_size"], 120);
  EXPECT_EQ(read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices)
                .model_slices.find("layer1.weight")
                ->sizes,
            (std::vector<int64_t>{3, 5}));
}

TEST(CheckpointWriter, SlicesThatDoNotFitAreNamed) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto refusal = [&](const std::function<void(Checkpoint&)>& change) {
      Checkpoint share = columns_of(comm.rank(), 2, 1);
      if (comm.rank() == 1) change(share);
      return message_of<Error>([&] { write_checkpoint(comm, dir / "c", share); });
    };
    EXPECT_THAT(refusal([](Checkpoint& share) {
                  TensorBox& box = share.model_slices.tensors.at("matrix").slices[0].box;
                  box = {{0, 5}, {8, 11}};
                }),
                HasSubstr("the slices of 'matrix' do not make it up: indices of dim 1 from 5 on"));
    EXPECT_THAT(refusal([](Checkpoint& share) {
                  share.model_slices.tensors.at("matrix").slices[0].box = {{0, 7}, {8, 13}};
                }),
                HasSubstr("'matrix' is of a box that is none of it"));
    EXPECT_THAT(refusal([](Checkpoint& share) {
                  share.model.tensors = {{"matrix", at::zeros({8, 12}, at::kInt)}};
                }),
                HasSubstr("'matrix' is given whole and in slices"));
    EXPECT_THAT(refusal([](Checkpoint& share) {
                  share.model.tensors = {{"vector", at::zeros({5}, at::kInt)}};
                }),
                HasSubstr("the slices of 'vector' do not make it up"));
    EXPECT_FALSE(checkpoint_exists(dir / "c"));
  });
  Checkpoint alone = columns_of(0, 2, 1);
  alone.optimizer = {};
  EXPECT_THAT(message_of<InvalidArgument>([&] { write_checkpoint(dir / "c", alone); }),
              HasSubstr("of 'matrix' only a part is there"));
  EXPECT_TRUE(dir.names().empty());
}

TEST(CheckpointWriter, WhatOneRankHasIsOneFile) {
  const TestDirectory dir;
  testing::run_threads(3, [&](Communicator& comm) {
    write_checkpoint(comm, dir / "c", comm.rank() == 0 ? share_of(0, 1, 5) : Checkpoint());
  });
  EXPECT_EQ(number_of(dir / "c", 1), 5);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir / "c"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("checksums.json", "config.json", "model.safetensors",
                                 "optimizer.safetensors", "ranks.safetensors", "trainer.json",
                                 "vocab.txt"));
}

TEST(CheckpointWriter, ASnapshotIsOfTheMoment) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    CheckpointWriter writer(comm);
    for (int number = 1; number <= 5; ++number) {
      Checkpoint share = share_of(comm.rank(), 2, number);
      if (comm.rank() == 0)
        share.tensors["ema"] = {.tensors = {{"w", at::full({6}, number, at::kInt)}}};
      writer.start(dir / "c", share, {.snapshot = true});
      EXPECT_TRUE(writer.under_way());
      for (const auto& [name, tensor] : share.model.tensors) tensor.zero_();
      for (const auto& [name, tensor] : share.optimizer.tensors) tensor.slices[0].values.zero_();
      for (const auto& [name, tensor] : share.ranks.tensors) tensor.zero_();
      for (const auto& [name, part] : share.tensors) part.tensors[0].second.zero_();
      if (number % 2 == 0) writer.wait();  // otherwise the next start() waits
    }
    writer.wait();
    EXPECT_FALSE(writer.under_way());
    writer.wait();
    EXPECT_EQ(number_of(dir / "c", 2), 5);
    const Checkpoint last = read_checkpoint(dir / "c");
    EXPECT_TRUE(last.tensors.at("ema").find("w")->eq(5).all().item<bool>());
    EXPECT_TRUE(last.ranks.find("cpu_generator")->eq(5).all().item<bool>());
  });
  EXPECT_EQ(dir.names(), std::vector<std::string>{"c"});
}

TEST(CheckpointWriter, AFailureOfOneIsEverybodysAndTheFormerStays) {
  const TestDirectory dir;
  testing::run_threads(3, [&](Communicator& comm) {
    CheckpointWriter writer(comm);
    writer.start(dir / "c", share_of(comm.rank(), 3, 1));
    writer.wait();
    for (const int culprit : {1, 2, 0}) {
      Checkpoint share = share_of(comm.rank(), 3, 2);
      if (comm.rank() == culprit)
        share.model.tensors = {{"bad", at::zeros({1}, at::kComplexDouble)}};
      writer.start(dir / "c", share);
      std::string message = "no error";
      try {
        writer.wait();
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_THAT(message, HasSubstr("tensor 'bad'")) << "rank " << comm.rank();
      if (culprit != 0) {
        EXPECT_THAT(message, HasSubstr("rank " + std::to_string(culprit) + ": "));
      }
      EXPECT_FALSE(writer.under_way());
      EXPECT_EQ(number_of(dir / "c", 3), 1);
    }
    writer.start(dir / "c", share_of(comm.rank(), 3, 3));
    writer.wait();
    EXPECT_EQ(number_of(dir / "c", 3), 3);
  });
  EXPECT_EQ(dir.names(), std::vector<std::string>{"c"});
}

TEST(CheckpointWriter, SharesThatDoNotFitAreNamed) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    const auto refusal = [&](const std::function<void(Checkpoint&)>& change) {
      Checkpoint share = share_of(comm.rank(), 2, 1);
      if (comm.rank() == 1) change(share);
      std::string message;
      try {
        write_checkpoint(comm, dir / "c", share);
      } catch (const CheckpointError& error) {
        message = error.what();
      }
      return message;
    };
    EXPECT_THAT(refusal([](Checkpoint& share) { share.model.tensors[0].first = "layer0.weight"; }),
                HasSubstr("two ranks write the tensor 'layer0.weight'"));
    EXPECT_THAT(refusal([](Checkpoint& share) {
                  share.optimizer.tensors.at("0.exp_avg").slices[0].begin -= 1;
                }),
                HasSubstr("the slices of '0.exp_avg' do not make it up"));
    EXPECT_THAT(refusal([](Checkpoint& share) {
                  SlicedTensor& state = share.optimizer.tensors.at("0.exp_avg");
                  state.sizes = {1000, 1};
                  state.strides = {1, 1};
                }),
                HasSubstr("ranks disagree about the shape or dtype of '0.exp_avg'"));
    EXPECT_FALSE(checkpoint_exists(dir / "c"));
    Checkpoint named = share_of(comm.rank(), 2, 1);
    named.files["model-1.safetensors"] = "x";
    EXPECT_THROW(write_checkpoint(comm, dir / "c", named), Error);
  });
  EXPECT_TRUE(dir.names().empty());
}

TEST(CheckpointWriter, WhatIsToHappenAfterwardsHappensBeforeWaitReturns) {
  const TestDirectory dir;
  std::atomic<int> published{0};
  testing::run_threads(2, [&](Communicator& comm) {
    write_checkpoint(comm, dir / "c", share_of(comm.rank(), 2, 1), {.published = [&] {
                       ++published;
                       EXPECT_EQ(number_of(dir / "c", 2), 1);
                     }});
    EXPECT_EQ(published, 1);
    comm.barrier();
    EXPECT_THAT(message_of<CheckpointError>([&] {
                  try {
                    write_checkpoint(comm, dir / "c", share_of(comm.rank(), 2, 2),
                                     {.published = [] { throw CheckpointError("no more links"); }});
                  } catch (const CheckpointError&) {
                    throw;
                  }
                }),
                HasSubstr("no more links"));
  });
}

// A writer that is destroyed neither waits for others nor removes existing files.
TEST(CheckpointWriter, GoesWithoutTheOthers) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    write_checkpoint(comm, dir / "c", share_of(comm.rank(), 2, 1));
    {
      CheckpointWriter writer(comm);
      writer.start(dir / "c", share_of(comm.rank(), 2, 2), {.snapshot = true});
    }
    // Starts at once: no part of an abandoned attempt enters another one.
    write_checkpoint(comm, dir / "c", share_of(comm.rank(), 2, 3));
    EXPECT_EQ(number_of(dir / "c", 2), 3);
    comm.barrier();
    {
      CheckpointWriter writer(comm);
      writer.start(dir / "c", share_of(comm.rank(), 2, 4), {.snapshot = true});
    }
    comm.barrier();
    const int number = number_of(dir / "c", 2);
    EXPECT_TRUE(number == 3 || number == 4);
    comm.barrier();
    write_checkpoint(comm, dir / "c", share_of(comm.rank(), 2, 5));
  });
  EXPECT_EQ(number_of(dir / "c", 2), 5);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"c"});
}

TEST(CheckpointWriter, DamageToAnyFileIsNamed) {
  const TestDirectory dir;
  testing::run_threads(2, [&](Communicator& comm) {
    write_checkpoint(comm, dir / "c", share_of(comm.rank(), 2, 1));
  });
  for (const auto& [file, sum] : read_checksums(dir / "c")) {
    const std::string name = "c/" + file, bytes = dir.read(name);
    const auto expect_named = [&](const char* how) {
      EXPECT_THAT(message_of<CheckpointError>([&] { read_checkpoint(dir / "c"); }), HasSubstr(file))
          << how;
    };
    dir.write(name, bytes.substr(0, bytes.size() - 1));
    expect_named("truncated");
    std::string other = bytes;
    other.back() = static_cast<char>(other.back() ^ 1);
    dir.write(name, other);
    expect_named("changed");
    dir.write(name, bytes);
    if (file.find("-0000") == std::string::npos && file.find(".index.") == std::string::npos)
      continue;
    fs::remove(dir / name);
    expect_named("missing");
    dir.write(name, bytes);
  }
  // Shards of another checkpoint, or of another rank.
  fs::rename(dir / "c/optimizer-00001-of-00002.safetensors", dir / "x");
  fs::rename(dir / "c/optimizer-00002-of-00002.safetensors",
             dir / "c/optimizer-00001-of-00002.safetensors");
  fs::rename(dir / "x", dir / "c/optimizer-00002-of-00002.safetensors");
  EXPECT_THAT(message_of<CheckpointError>([&] { read_checkpoint(dir / "c"); }),
              HasSubstr("optimizer-00001-of-00002.safetensors"));
}

}  // namespace
}  // namespace lockstep::inline v0::checkpoint_writer_test
