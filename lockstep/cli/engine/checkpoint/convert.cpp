#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/cli/engine/checkpoint/command.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/output.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

struct ConvertArguments {
  std::string in, out, dtype, json;
  bool force = false;
  bool keep_prefix = false;
};

const std::map<std::string, at::ScalarType>& float_dtypes() {
  static const std::map<std::string, at::ScalarType> kDtypes = {
      {"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}};
  return kDtypes;
}

void check(const ConvertArguments& arguments) {
  const fs::path out = arguments.out;
  if (out.extension() != ".safetensors")
    throw InvalidArgument(arguments.out + ": only .safetensors is written; name the output so");
  if (fs::is_directory(out)) throw InvalidArgument(arguments.out + " is a directory; give a file");
  if (fs::exists(out) && !arguments.force)
    throw InvalidArgument(arguments.out + " exists; give --force to replace it");
  check_output_file(arguments.out);
  check_result_files({arguments.json});
}

// Integers and booleans keep their type.
void to_dtype(NamedTensors* tensors, at::ScalarType dtype) {
  for (auto& [name, tensor] : *tensors) {
    if (tensor.is_floating_point()) tensor = tensor.to(dtype);
  }
}

}  // namespace

int checkpoint_convert(const Arguments& words) {
  return run_guarded("checkpoint convert", [&] {
    CLI::App app(
        "Writes the tensors of a file as a safetensors file. Files of Python's torch.save are read "
        "without running any of their code: tensors, numbers and text only. What PyTorch's "
        "wrappers "
        "write into names ('module.', '_orig_mod.') is left out.",
        "lockstep checkpoint convert");
    ConvertArguments arguments;
    std::vector<std::string> dtypes;
    for (const auto& [name, dtype] : float_dtypes()) dtypes.push_back(name);
    app.add_option("IN", arguments.in,
                   "checkpoint, output directory of a run, Hugging Face directory, .safetensors, "
                   ".pt, or the .index.json of several")
        ->required()
        ->type_name("PATH");
    app.add_option("OUT", arguments.out, "the .safetensors file to write")
        ->required()
        ->type_name("FILE");
    app.add_option("--dtype", arguments.dtype, "what floating-point tensors become [as they are]")
        ->check(CLI::IsMember(dtypes));
    app.add_flag("--keep-prefix", arguments.keep_prefix, "keep what wrappers write into names");
    app.add_flag("--force", arguments.force, "replace OUT if it exists");
    app.add_option("--json", arguments.json, "also write what was done to this file")
        ->type_name("FILE");
    cli::add_example(app, {"lockstep checkpoint convert model.pt model.safetensors"});
    parse(app, words);
    check(arguments);
    const fs::path in = checkpoint_meant(arguments.in);
    TensorFile file = read_tensor_file(in);
    NamedTensors& tensors = file.contents.tensors;
    const std::string stripped = arguments.keep_prefix ? "" : strip_wrapper_prefixes(&tensors);
    if (!arguments.dtype.empty()) to_dtype(&tensors, float_dtypes().at(arguments.dtype));
    // Hugging Face's libraries require this.
    file.contents.metadata["format"] = "pt";
    const FileSum sum = write_safetensors(arguments.out, tensors, file.contents.metadata);
    std::cout << "Wrote " << arguments.out << ": " << tensors.size() << " tensors, " << sum.bytes
              << " bytes, XXH3-64 " << checksum_text(sum.xxh3) << '\n';
    if (!stripped.empty()) std::cout << "'" << stripped << "' was left out of the names.\n";
    if (!file.left_out.empty())
      std::cout << "Left out, not being tensors: " << printable(joined(file.left_out)) << '\n';
    std::cout << std::flush;
    write_json(arguments.json, {{"in", in.string()},
                                {"out", arguments.out},
                                {"tensors", tensors.size()},
                                {"bytes", sum.bytes},
                                {"xxh3", checksum_text(sum.xxh3)},
                                {"prefix_left_out", !stripped.empty()},
                                {"found_in", file.found_in},
                                {"left_out", file.left_out}});
    return 0;
  });
}

}  // namespace lockstep::inline v0::engine
