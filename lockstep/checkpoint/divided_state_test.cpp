// Parameters and optimizers that are divided in one way, saved, and read in another. Adam works
// element by element, so parts take the same steps as the whole, bit for bit.
#include "lockstep/checkpoint/divided_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/thread_ranks.h"

namespace lockstep::inline v0::divided_state_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;

const std::map<std::string, std::vector<int64_t>> kShapes{
    {"matrix", {6, 8}}, {"norm", {6}}, {"table", {10, 4}}, {"experts", {4, 6, 8}}, {"scale", {}}};

at::Tensor value_of(const std::string& name) {
  const std::vector<int64_t>& shape = kShapes.at(name);
  const int64_t numel = c10::multiply_integers(shape);
  return at::arange(numel, at::kDouble).add(static_cast<double>(name.size())).sin().view(shape);
}
at::Tensor gradient_of(const std::string& name, int step) {
  return value_of(name).mul(3.0 + step).cos();
}

at::Tensor in_box(const at::Tensor& whole, const TensorBox& box) {
  at::Tensor part = whole;
  for (size_t i = 0; i < box.begin.size(); ++i)
    part = part.narrow(static_cast<int64_t>(i), box.begin[i], box.end[i] - box.begin[i]);
  return part;
}

// A way to divide the parameters above among ranks.
struct Division {
  const char* name;
  int ranks;
  // A rank's part; nullopt for a rank without the parameter.
  std::function<std::optional<PlacedParameter>(const std::string& name, int rank)> place;
};

std::optional<PlacedParameter> placed(const std::string& name, TensorBox box, bool writes = true) {
  return PlacedParameter{.shape = kShapes.at(name), .box = std::move(box), .writes = writes};
}

// Every rank has a whole copy; the last one writes.
std::optional<PlacedParameter> copies(const std::string& name, int rank, int ranks) {
  return placed(name, {}, rank == ranks - 1);
}

// Rows of the table, columns of the matrix, experts by the first dim; for two ranks.
std::optional<PlacedParameter> by_one_dim(const std::string& name, int rank) {
  const int64_t r = rank;
  if (name == "matrix") return placed(name, {{0, 4 * r}, {6, 4 * r + 4}});
  if (name == "table") return placed(name, {{rank == 0 ? 0 : 3, 0}, {rank == 0 ? 3 : 10, 4}});
  if (name == "experts") return placed(name, {{2 * r, 0, 0}, {2 * r + 2, 6, 8}});
  return placed(name, {}, rank == 0);
}

// Experts by two dims at once; for four ranks.
std::optional<PlacedParameter> by_two_dims(const std::string& name, int rank) {
  const int64_t a = rank / 2, b = rank % 2;
  if (name == "experts") return placed(name, {{2 * a, 0, 4 * b}, {2 * a + 2, 6, 4 * b + 4}});
  if (name == "matrix") return placed(name, {{0, 2 * rank}, {6, 2 * rank + 2}});
  if (name == "table") return placed(name, {{0, 2 * b}, {10, 2 * b + 2}}, a == 0);
  return placed(name, {}, rank == 3);
}

// Two stages: the second has the parameters that the first does not have, and both have the scale.
std::optional<PlacedParameter> by_stages(const std::string& name, int rank) {
  if (name == "scale") return placed(name, {}, rank == 1);
  const bool first = name == "experts" || name == "norm";
  return first == (rank == 0) ? placed(name, {}) : std::nullopt;
}

const std::vector<Division> kDivisions{
    {"one", 1, [](const std::string& name, int) { return placed(name, {}); }},
    {"copies", 3, [](const std::string& name, int rank) { return copies(name, rank, 3); }},
    {"dim", 2, by_one_dim},
    {"dims", 4, by_two_dims},
    {"stages", 2, by_stages},
};

// A rank's part, and its optimizer: the matrices in one group, the rest in another.
struct Part {
  NamedTensors parameters;
  PlacedParameters places;
  ParameterNames names;
  std::unique_ptr<AdamW> optimizer;

  Part(const Division& division, int rank, bool with_values) : names(2) {
    std::vector<std::vector<at::Tensor>> tensors(2);
    for (const auto& [name, shape] : kShapes) {
      const auto place = division.place(name, rank);
      if (!place) continue;
      const at::Tensor value = in_box(value_of(name), place->box).clone().contiguous();
      parameters.emplace_back(
          name, (with_values ? value : at::zeros_like(value)).set_requires_grad(true));
      places[name] = *place;
      const size_t group = shape.size() >= 2 ? 0 : 1;
      names[group].push_back(name);
      tensors[group].push_back(parameters.back().second);
    }
    std::vector<torch::optim::OptimizerParamGroup> groups(tensors.begin(), tensors.end());
    optimizer = std::make_unique<AdamW>(groups, AdamWOptions(0.1));
    static_cast<AdamWOptions&>(optimizer->param_groups()[1].options()).weight_decay(0);
  }

  void steps(int from, int to) {
    for (int step = from; step < to; ++step) {
      for (auto& [name, parameter] : parameters)
        parameter.mutable_grad() =
            in_box(gradient_of(name, step), places.at(name).box).contiguous();
      optimizer->step();
    }
  }

  // The state in the form of ZeroOptimizer's ranks: for each tensor a range of this part.
  SlicedTensors range_of_state(int rank, int ranks) const {
    SlicedTensors all(optimizer_state(*optimizer)), mine;
    mine.metadata = all.metadata;
    for (auto& [name, tensor] : all.tensors) {
      const int64_t numel = tensor.numel();
      const int64_t begin = numel * rank / ranks, end = numel * (rank + 1) / ranks;
      if (tensor.sizes.empty() && name.ends_with("step")) {
        if (rank == 0) mine.tensors.emplace(name, tensor);
      } else if (begin < end) {
        mine.tensors.emplace(name, slice_of(tensor.sizes, tensor.strides, begin,
                                            tensor.slices[0].values.narrow(0, begin, end - begin)));
      }
    }
    return mine;
  }
};

std::map<std::string, at::Tensor> whole_after(int steps) {
  Part part(kDivisions[0], 0, true);
  part.steps(0, steps);
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, parameter] : part.parameters) values[name] = parameter.detach().clone();
  return values;
}

void expect_parts(const Part& part, const std::map<std::string, at::Tensor>& whole,
                  const std::string& what) {
  for (const auto& [name, parameter] : part.parameters)
    EXPECT_TRUE(parameter.equal(in_box(whole.at(name), part.places.at(name).box)))
        << name << " of " << what;
}

// Three steps, with `replicas` ranks per part, which divide its optimizer's state (ZeRO) or each
// have all of it.
void save(const Division& division, int replicas, bool zero, const std::filesystem::path& path) {
  testing::run_threads(division.ranks * replicas, [&](Communicator& comm) {
    const int rank = comm.rank() / replicas, replica = comm.rank() % replicas;
    Part part(division, rank, true);
    part.steps(0, 3);
    const PlacedParameters own = dealt(part.places, replica, replicas);
    Checkpoint share;
    share.model_slices = slices_of_parameters(part.parameters, own);
    share.optimizer =
        zero ? slices_of_state(part.range_of_state(replica, replicas), part.names, part.places)
             : slices_of_state(optimizer_state(*part.optimizer), part.names, own);
    join_groups(comm, share.optimizer);
    write_checkpoint(comm, path, share);
  });
}

TEST(DividedState, AnyDivisionGoesOnFromAnyOther) {
  const auto after_three = whole_after(3), after_five = whole_after(5);
  for (const Division& from : kDivisions) {
    for (const auto& [replicas, zero] :
         {std::pair{1, false}, {2, true}, {2, false}, {3, true}, {3, false}}) {
      const TestDirectory dir;
      save(from, replicas, zero, dir / "c");
      const Checkpoint stored =
          read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
      for (const Division& to : kDivisions) {
        for (int rank = 0; rank < to.ranks; ++rank) {
          const std::string what = std::string(from.name) + " to " + to.name;
          Part part(to, rank, false);
          load_parameters(part.parameters, part.places, stored.model_slices, "c");
          expect_parts(part, after_three, what);
          const SlicedTensors state = part_of_state(stored.optimizer, part.names, part.places, "c");
          set_optimizer_state(*part.optimizer, state.whole(), "c");
          part.steps(3, 5);
          expect_parts(part, after_five, what);
        }
      }
      // The same for a reader without divisions.
      const Checkpoint plain = read_checkpoint(dir / "c");
      Part whole(kDivisions[0], 0, false);
      for (auto& [name, parameter] : whole.parameters)
        parameter.detach().copy_(*plain.model.find(name));
      set_optimizer_state(*whole.optimizer, by_position(plain.optimizer, whole.names, "c").whole(),
                          "c");
      whole.steps(3, 5);
      expect_parts(whole, after_five, "plain");
    }
  }
}

// A directory that one process wrote without any divisions.
TEST(DividedState, FormerCheckpointsAreReadInParts) {
  const TestDirectory dir;
  Part whole(kDivisions[0], 0, true);
  whole.steps(0, 3);
  Checkpoint checkpoint;
  checkpoint.model.tensors = whole.parameters;
  checkpoint.optimizer = by_name(optimizer_state(*whole.optimizer), whole.names);
  write_checkpoint(dir / "c", checkpoint);
  const Checkpoint stored = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
  const auto after_five = whole_after(5);
  for (const Division& to : kDivisions) {
    for (int rank = 0; rank < to.ranks; ++rank) {
      Part part(to, rank, false);
      load_parameters(part.parameters, part.places, stored.model_slices, "c");
      set_optimizer_state(*part.optimizer,
                          part_of_state(stored.optimizer, part.names, part.places, "c").whole(),
                          "c");
      part.steps(3, 5);
      expect_parts(part, after_five, to.name);
    }
  }
}

// The files that two ranks under ZeRO wrote before there were boxes.
TEST(DividedState, FormerSlicesAreReadInParts) {
  const TestDirectory dir;
  std::filesystem::create_directory(dir / "c");
  const auto file = [&](const std::string& name) { return dir / ("c/" + name); };
  const at::Tensor matrix = value_of("matrix"), flat = matrix.view({-1});
  write_safetensors(file("model.safetensors"), {{"matrix", matrix}});
  write_safetensors(file("ranks.safetensors"), {});
  dir.write("c/trainer.json", "{}");
  dir.write("c/config.json", "{}");
  const at::Tensor step = at::full({}, 3, at::kLong);
  write_safetensors(file("optimizer-00001-of-00002.safetensors"),
                    {{"matrix.exp_avg", flat.narrow(0, 0, 20)},
                     {"matrix.exp_avg_sq", flat.narrow(0, 0, 20).abs()},
                     {"matrix.step", step}});
  write_safetensors(file("optimizer-00002-of-00002.safetensors"),
                    {{"matrix.exp_avg", flat.narrow(0, 20, 28)},
                     {"matrix.exp_avg_sq", flat.narrow(0, 20, 28).abs()}});
  const std::string slices =
      R"("slices": [{"begin": 0, "end": 20, "file": "optimizer-00001-of-00002.safetensors"},
                    {"begin": 20, "end": 48, "file": "optimizer-00002-of-00002.safetensors"}]})";
  dir.write("c/optimizer.safetensors.index.json",
            R"({"metadata": {"optimizer": "AdamW", "group.0":
                "{\"amsgrad\":false,\"betas\":[0.9,0.999],\"eps\":1e-08,\"lr\":0.1,)"
            R"(\"parameters\":[\"matrix\"],\"weight_decay\":0.01}"},
                "tensors": {
                "matrix.exp_avg": {"dtype": "F64", "shape": [6, 8], )" +
                slices + R"(, "matrix.exp_avg_sq": {"dtype": "F64", "shape": [6, 8], )" + slices +
                R"(, "matrix.step": {"dtype": "I64", "shape": [],
                "slices": [{"begin": 0, "end": 1, "file": "optimizer-00001-of-00002.safetensors"}]}}})");
  const Checkpoint stored = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
  const PlacedParameters places{{"matrix", *by_one_dim("matrix", 1)}};
  const at::Tensor part = at::zeros({6, 4}, at::kDouble).set_requires_grad(true);
  load_parameters({{"matrix", part}}, places, stored.model_slices, "c");
  EXPECT_TRUE(part.equal(matrix.narrow(1, 4, 4)));
  AdamW optimizer({part}, AdamWOptions(0.5));
  const SlicedTensors state = part_of_state(stored.optimizer, {{"matrix"}}, places, "c");
  set_optimizer_state(optimizer, state.whole(), "c");
  const Safetensors loaded = optimizer_state(optimizer);
  EXPECT_TRUE(loaded.find("0.exp_avg")->equal(matrix.narrow(1, 4, 4)));
  EXPECT_TRUE(loaded.find("0.exp_avg_sq")->equal(matrix.narrow(1, 4, 4).abs()));
  EXPECT_EQ(loaded.find("0.step")->item<int64_t>(), 3);
  EXPECT_EQ(static_cast<AdamWOptions&>(optimizer.param_groups()[0].options()).lr(), 0.1);
}

TEST(DividedState, ValuesComeAPartAtATime) {
  const TestDirectory dir;
  save(kDivisions[2], 1, false, dir / "c");
  const Checkpoint stored =
      read_checkpoint(dir / "c", CheckpointParts::kModelAndConfig, ModelForm::kSlices);
  const Part part(kDivisions[3], 1, false);
  const auto values =
      stored_parts(part_of_parameters(stored.model_slices, part.parameters, part.places, "c"),
                   part.parameters, "c");
  const at::Tensor expected =
      in_box(whole_after(3).at("experts"), part.places.at("experts").box).reshape({-1});
  const at::Tensor some = at::empty({17}, at::kDouble);
  values("experts", 20, some);
  EXPECT_TRUE(some.equal(expected.narrow(0, 20, 17)));
  const at::Tensor narrow = at::empty({5}, at::kFloat);
  values("experts", 43, narrow);
  EXPECT_TRUE(narrow.equal(expected.narrow(0, 43, 5).to(at::kFloat)));
}

TEST(DividedState, WhatDoesNotFitIsNamed) {
  const TestDirectory dir;
  save(kDivisions[2], 1, false, dir / "c");
  const Checkpoint stored = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
  const Part part(kDivisions[2], 0, false);
  const auto loaded = [&](const SlicedTensors& from, const PlacedParameters& places) {
    return message_of<Error>([&] { load_parameters(part.parameters, places, from, "c"); });
  };
  SlicedTensors lacking = stored.model_slices;
  lacking.tensors.erase("table");
  EXPECT_THAT(loaded(lacking, part.places), HasSubstr("c: has no tensor 'table'"));
  SlicedTensors other = stored.model_slices;
  other.tensors["table"] = slice_of({5, 8}, {8, 1}, 0, at::zeros({40}, at::kDouble));
  EXPECT_THAT(loaded(other, part.places),
              HasSubstr("c: 'table' has shape [5, 8], the model's [10, 4]"));
  for (const auto& [name, parameter] : part.parameters)
    EXPECT_TRUE(parameter.eq(0).all().item<bool>()) << "nothing was loaded";
  PlacedParameters places = part.places;
  places.at("matrix").box.end[1] = 5;
  EXPECT_THAT(loaded(stored.model_slices, places),
              HasSubstr("'matrix' is [6, 4], and its place has [6, 5]"));
  places.at("matrix").box.end[1] = 9;
  EXPECT_THAT(loaded(stored.model_slices, places),
              HasSubstr("'matrix' is [0:6,0:9], which [6, 8]"));
  places.erase("matrix");
  EXPECT_THAT(loaded(stored.model_slices, places), HasSubstr("'matrix' has no place"));

  const auto of_state = [&](const SlicedTensors& from, const ParameterNames& names) {
    return message_of<Error>([&] { part_of_state(from, names, part.places, "c"); });
  };
  EXPECT_THAT(of_state(stored.optimizer, {{"matrix", "norm"}, {}}), HasSubstr("in two groups"));
  PlacedParameters more = part.places;
  more["another"] = {.shape = {3}};
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { part_of_state(stored.optimizer, {{"another"}, {"norm"}}, more, "c"); }),
              HasSubstr("c: has no parameter 'another'"));
  EXPECT_THAT(of_state(SlicedTensors(optimizer_state(*part.optimizer)), part.names),
              HasSubstr("by position"));
  SlicedTensors odd(Safetensors{.tensors = {{"0.sketch", at::zeros({3})}}});
  EXPECT_THAT(message_of<InvalidArgument>([&] { slices_of_state(odd, part.names, part.places); }),
              HasSubstr("is [3]; of a divided parameter only numbers"));
}

TEST(DividedState, ReplicasShareTheWriting) {
  PlacedParameters places;
  for (const auto& [name, size] :
       std::map<std::string, int64_t>{{"a", 100}, {"b", 40}, {"c", 40}, {"d", 20}, {"e", 200}})
    places[name] = {.shape = {size, 2}, .box = {{0, 1}, {size, 2}}};
  places.at("e").writes = false;  // another part's rank writes
  std::map<std::string, int> writers;
  for (int replica = 0; replica < 2; ++replica) {
    int64_t elements = 0;
    for (const auto& [name, place] : dealt(places, replica, 2)) {
      if (!place.writes) continue;
      ++writers[name];
      elements += place.shape[0];
    }
    EXPECT_EQ(elements, 100);
  }
  EXPECT_EQ(writers, (std::map<std::string, int>{{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}}));
  EXPECT_EQ(dealt(places, 0, 1), places);
  EXPECT_THROW(dealt(places, 2, 2), InvalidArgument);
}

TEST(DividedState, GroupsOfRanksComeTogether) {
  const auto group = [](double lr, const std::string& names) {
    return "{\"lr\": " + std::to_string(lr) + ", \"parameters\": [" + names + "]}";
  };
  const Metadata first{{"optimizer", "AdamW"}, {"group.0", group(1, "\"a\", \"b\"")}};
  const Metadata second{{"optimizer", "AdamW"}, {"group.0", group(1, "\"b\", \"c\"")}};
  const Metadata both = joined_groups({{}, first, second, first});
  EXPECT_THAT(both.at("group.0"), HasSubstr(R"(["a","b","c"])"));
  EXPECT_EQ(both.at("optimizer"), "AdamW");
  EXPECT_TRUE(joined_groups({{}, {}}).empty());
  const auto refusal = [&](const Metadata& other) {
    return message_of<InvalidArgument>([&] { joined_groups({first, {}, other}); });
  };
  EXPECT_THAT(refusal({{"optimizer", "SGD"}, {"group.0", group(1, "")}}),
              HasSubstr("rank 2 is of another kind than rank 0's"));
  EXPECT_THAT(refusal({{"optimizer", "AdamW"}, {"group.0", group(2, "")}}),
              HasSubstr("rank 2 has other options in parameter group 0 than rank 0's"));
  Metadata more = second;
  more["group.1"] = group(1, "\"d\"");
  EXPECT_THAT(refusal(more), HasSubstr("rank 2 has 2 parameter groups, and rank 0's 1"));
  Metadata two = first;
  two["group.1"] = group(1, "");
  Metadata moved{{"optimizer", "AdamW"}, {"group.0", group(1, "")}, {"group.1", group(1, "\"a\"")}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { joined_groups({two, moved}); }),
              HasSubstr("rank 1 has 'a' in parameter group 1, another rank's in 0"));
  // All ranks learn of it.
  testing::run_threads(2, [&](Communicator& comm) {
    SlicedTensors state;
    state.metadata = comm.rank() == 0 ? first : more;
    EXPECT_THAT(message_of<Error>([&] { join_groups(comm, state); }),
                HasSubstr("make the same groups on all ranks"));
  });
}

// A stage whose optimizer has only one of the whole model's groups.
TEST(DividedState, GroupsWithoutThisRanksParametersAreLeftOut) {
  const TestDirectory dir;
  save(kDivisions[0], 1, false, dir / "c");
  const Checkpoint stored = read_checkpoint(dir / "c", CheckpointParts::kAll, ModelForm::kSlices);
  const Part part(kDivisions[0], 0, true);
  const SlicedTensors state = part_of_state(stored.optimizer, {{"table"}}, part.places, "c");
  EXPECT_EQ(state.tensors.size(), 3u);
  EXPECT_EQ(state.metadata.count("group.1"), 0u);
  AdamW alone({at::zeros({10, 4}, at::kDouble).set_requires_grad(true)}, AdamWOptions(0.3));
  set_optimizer_state(alone, state.whole(), "c");
  EXPECT_EQ(static_cast<AdamWOptions&>(alone.param_groups()[0].options()).lr(), 0.1);
}

}  // namespace
}  // namespace lockstep::inline v0::divided_state_test
