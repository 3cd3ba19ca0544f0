// `abele run`: trains or serves a saved program on tensors in files, without Python. Docs: docs/guide/saving.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "abele/abele.h"
#include "lr_schedule.h"
#include "output.h"

namespace {

using abele::ErrorCode;
using Tensors = std::vector<at::Tensor>;
using Clock = std::chrono::steady_clock;

// The exit statuses of the tool; --help lists them too.
enum ExitStatus { kDone = 0, kError = 1, kStopped = 3 };
constexpr const char* kFooter =
    "Ends with 0 when all is done, 1 with an error, 3 when SIGTERM or SIGINT stopped it: the step that ran was "
    "finished "
    "and, with --checkpoint, kept; the same command goes on from there. A second signal ends it at once.";

struct Arguments {
  std::string program;
  std::vector<std::string> data, inputs, schedule;
  int64_t steps = 0, epochs = 0, done = 0, every = 0, keep = 3, threads = 0, print_every = 1;
  uint64_t seed = 0;
  bool shuffle = false;
  double learning_rate = std::numeric_limits<double>::quiet_NaN();
  std::string out, checkpoint, save, options;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] void refuse(ErrorCode code, abele::Message message) { throw abele::UserError(code, std::move(message)); }

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all.empty() ? "none" : all;
}

std::string shapeOf(const std::string& type, at::IntArrayRef sizes) {
  std::string all = type + "[";
  for (size_t i = 0; i < sizes.size(); ++i) all += (i > 0 ? "," : "") + std::to_string(sizes[i]);
  return all + "]";
}

double secondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// --- data ------------------------------------------------------------------------------------------------------------

struct Data {
  abele::StoredRows files;
  std::vector<std::string> names;  // names of the tensors, in the program's order
  int64_t rows = 0;                // rows of each tensor
  int64_t batch = 0;               // rows that one call takes

  /// Reads batches ahead on a thread. drop_last leaves out the rows that do not fill a batch.
  abele::DataLoader loader(abele::DataLoaderOptions loading) const {
    loading.batch_size = batch;
    loading.mode = abele::DataLoaderMode::kAsync;
    return abele::DataLoader(abele::Options(), files, names, loading);
  }
};

/// The tensor of the data for each input, by --inputs or by its name: the whole name, or its last part.
std::vector<std::string> chooseTensors(const std::vector<abele::ProgramValue>& inputs, const Arguments& arguments,
                                       const std::map<std::string, abele::ProgramValue>& data) {
  std::vector<std::string> has, takes, chosen;
  for (const auto& [name, tensor] : data) has.push_back(shapeOf(name + " " + tensor.type, tensor.sizes));
  for (const abele::ProgramValue& input : inputs) takes.push_back(shapeOf(input.name + " " + input.type, input.sizes));
  const auto fail = [&](const std::string& what) {
    refuse(ErrorCode::E0801,
           {.what = what,
            .at = listed(arguments.data),
            .found = listed(has),
            .expected = listed(takes),
            .remedy = "--inputs NAME,NAME,... with the data's names in the order of the program's inputs"});
  };
  if (!arguments.inputs.empty()) {
    if (arguments.inputs.size() != inputs.size())
      fail(text("--inputs names ", arguments.inputs.size(), " tensors, the program takes ", inputs.size()));
    for (const std::string& name : arguments.inputs)
      if (!data.contains(name)) fail(text("the data has no tensor ", name));
    return arguments.inputs;
  }
  for (const abele::ProgramValue& input : inputs) {
    const std::string last = input.name.substr(input.name.rfind('.') + 1);  // the whole name if it has no dot
    std::string name = data.contains(input.name) ? input.name : data.contains(last) ? last : "";
    if (name.empty() && inputs.size() == 1 && data.size() == 1) name = data.begin()->first;
    if (name.empty() || std::ranges::find(chosen, name) != chosen.end())
      fail(text("which tensor of the data is the program's input ", input.name, "?"));
    chosen.push_back(name);
  }
  return chosen;
}

/// Reads the samples of the files in the program's order. fills_calls: requires enough rows for one call. Throws E0801,
/// E0501, E0712.
Data loadData(abele::CompiledModel& model, const Arguments& arguments, bool fills_calls) {
  const std::vector<abele::ProgramValue> inputs = abele::inputsOf(model);
  Data data{.files = abele::StoredRows(arguments.data)};
  std::map<std::string, abele::ProgramValue> all;
  for (const abele::ProgramValue& tensor : data.files.tensors()) all.emplace(tensor.name, tensor);
  data.names = chooseTensors(inputs, arguments, all);
  if (inputs.empty()) refuse(ErrorCode::E0801, {.what = "the program takes no tensors, so it cannot use data"});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const abele::ProgramValue& tensor = all.at(data.names[i]);
    std::vector<int64_t> expected = inputs[i].sizes;
    const bool has_rows = !tensor.sizes.empty() && !expected.empty();
    const int64_t batch = has_rows ? expected[0] : 0;
    if (has_rows) expected[0] = tensor.sizes[0];
    if (!has_rows || tensor.type != inputs[i].type || tensor.sizes != expected)
      refuse(ErrorCode::E0801,
             {.what = text("the data's ", tensor.name, " does not fit the program's input ", inputs[i].name),
              .at = listed(arguments.data),
              .found = shapeOf(tensor.type, tensor.sizes),
              .expected = shapeOf(inputs[i].type, inputs[i].sizes) + ", with any number of rows",
              .remedy = "write the tensor with the type and shape of the program's input"});
    if (i > 0 && (batch != data.batch || tensor.sizes[0] != data.rows))
      refuse(ErrorCode::E0801, {.what = "the data's tensors have different numbers of rows",
                                .at = listed(arguments.data),
                                .found = text(tensor.name, " ", tensor.sizes[0], ", ", batch, " in a call"),
                                .expected = text(data.names[0], " ", data.rows, ", ", data.batch, " in a call"),
                                .remedy = "write one row for each sample"});
    data.batch = batch;
    data.rows = tensor.sizes[0];
  }
  if (const int64_t least = fills_calls ? data.batch : 1; data.rows < least)
    refuse(ErrorCode::E0801, {.what = "the data has too few rows",
                              .at = listed(arguments.data),
                              .found = text(data.rows, " rows"),
                              .expected = text(least, " or more")});
  return data;
}

// --- training --------------------------------------------------------------------------------------------------------

/// The results that are single numbers, step by step.
class Losses {
 public:
  explicit Losses(std::vector<std::string> names) : names_(std::move(names)) {}

  /// rates: learning rates by parameter group; empty: not recorded.
  void add(int64_t step, const Tensors& results, const std::vector<double>& rates) {
    steps_.push_back(step);
    rates_.insert(rates_.end(), rates.begin(), rates.end());
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].numel() == 1) {
        Series& series = of_[i < names_.size() ? names_[i] : std::to_string(i)];
        series.type = results[i].scalar_type();
        series.values.push_back(results[i].item());
      }
  }
  /// Returns "loss 0.25", or names and values if there are several.
  std::string last() const {
    std::string all;
    for (const auto& [name, series] : of_)
      all += text("  ", of_.size() == 1 ? "loss" : name, " ", show(series.values.back()));
    return all;
  }
  std::string change() const {
    std::string all;
    for (const auto& [name, series] : of_)
      all += text("; ", of_.size() == 1 ? "loss" : name, " ", show(series.values.front()), " -> ",
                  show(series.values.back()));
    return all;
  }
  void write(const std::string& path) const {
    std::map<std::string, at::Tensor> file{{"step", at::tensor(steps_, at::kLong)}};
    if (!rates_.empty())
      file["lr"] = at::tensor(rates_, at::kDouble).reshape({static_cast<int64_t>(steps_.size()), -1});
    for (const auto& [name, series] : of_) file[of_.size() == 1 ? "loss" : name] = series.tensor();
    abele::saveTensors(path, file);
  }

 private:
  /// Keeps numbers instead of tensors. Small tensors between the large ones of batches would keep the heap from reusing
  /// the large blocks, and a long run would grow by about a batch at each step.
  struct Series {
    at::ScalarType type = at::kFloat;
    std::vector<at::Scalar> values;

    at::Tensor tensor() const {
      at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(type));
      for (size_t i = 0; i < values.size(); ++i) all.select(0, static_cast<int64_t>(i)).fill_(values[i]);
      return all;
    }
  };

  static std::string show(const at::Scalar& value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.6g", value.toDouble());
    return buffer;
  }

  std::vector<std::string> names_;
  std::vector<int64_t> steps_;
  std::vector<double> rates_;  // by step, then by group
  std::map<std::string, Series> of_;
};

class Training {
 public:
  Training(const Arguments& arguments, const abele::Options& options)
      : arguments_(arguments),
        model_(abele::loadTrainingModel(arguments.program, options)),
        data_(loadData(model_, arguments, /*fills_calls=*/true)),
        loader_(data_.loader({.shuffle = arguments.shuffle, .seed = arguments.seed})),
        losses_(abele::resultNames(model_)) {}

  int run(const abele::StopOnSignal& stop) {
    begin();
    const int64_t first = step_, last = lastStep();
    const Clock::time_point started = Clock::now();
    while (step_ < last && !stop)
      for (const auto& batch : loader_) {  // begin() continues the pass in progress
        if (schedule_) setRates(schedule_->of(step_));
        const Tensors results = model_(batch);
        ++step_;
        note(results, last);
        if (step_ >= last || stop) break;  // before the loader takes another batch, so that its position is kept
      }
    end(step_ - first, secondsSince(started));
    if (step_ >= last) return kDone;
    std::cout << "stopped by " << ::strsignal(stop.signal()) << " after step " << step_ << " of " << last << "\n";
    return kStopped;
  }

 private:
  void begin() {
    step_ = arguments_.done;
    const std::vector<double> saved = rates();  // the program's own, because a checkpoint's may come from a schedule
    if (!arguments_.checkpoint.empty())
      if (const auto resumed = abele::loadCheckpoint(arguments_.checkpoint, model_, &loader_)) {
        step_ = kept_ = resumed->step;
        std::cout << "goes on from " << resumed->path << "\n";
      }
    if (kept_ < 0) loader_.seek({.pass = step_ / loader_.size(), .batches = step_ % loader_.size()});
    const std::vector<double> given(saved.size(), arguments_.learning_rate);
    const bool is_given = arguments_.learning_rate == arguments_.learning_rate;
    if (!arguments_.schedule.empty())
      schedule_.emplace(arguments_.schedule, is_given ? given : saved);
    else if (is_given)
      setRates(given);
    if (const int64_t rest = data_.rows % data_.batch; rest != 0)
      std::cerr << "abele run: " << rest << " of " << data_.rows << " rows are left out in each pass: a call takes "
                << data_.batch << "\n";
  }

  /// The learning rates of the parameter groups.
  std::vector<double> rates() const {
    std::vector<double> all;
    std::visit(
        [&](const auto& groups) {
          for (const auto& group : groups) all.push_back(group.lr);
        },
        model_.optimizer().groups);
    return all;
  }

  void setRates(const std::vector<double>& wanted) {
    if (rates() == wanted) return;
    abele::optim::Optimizer changed = model_.optimizer();
    std::visit(
        [&](auto& groups) {
          for (size_t i = 0; i < groups.size(); ++i) groups[i].lr = wanted[i];
        },
        changed.groups);
    model_.setOptimizer(changed);
  }

  int64_t lastStep() const {
    return arguments_.steps > 0 ? arguments_.steps : std::max<int64_t>(arguments_.epochs, 1) * loader_.size();
  }

  void note(const Tensors& results, int64_t last) {
    losses_.add(step_, results, schedule_ ? rates() : std::vector<double>());
    if (step_ % arguments_.print_every == 0 || step_ == last)
      std::cout << "step " << step_ << losses_.last() << std::endl;  // flushes, so that the user sees it at once
    if (arguments_.every > 0 && step_ % arguments_.every == 0) keep();
  }

  void keep() {
    if (arguments_.checkpoint.empty() || kept_ == step_) return;
    path_ = abele::saveCheckpoint(arguments_.checkpoint, model_, step_, &loader_, {.keep = arguments_.keep});
    kept_ = step_;
  }

  void end(int64_t steps, double seconds) {
    if (steps > 0) {
      keep();
      std::printf("%lld steps in %.3g s, %.3g s a step, %.4g rows a second", static_cast<long long>(steps), seconds,
                  seconds / static_cast<double>(steps), static_cast<double>(steps * data_.batch) / seconds);
      std::cout << std::flush;
      std::fflush(stdout);
      std::cout << losses_.change() << "\n";
    } else {
      std::cout << "no steps are left: " << step_ << " are done\n";
    }
    if (!path_.empty()) std::cout << "checkpoint " << path_ << "\n";
    if (!arguments_.out.empty()) losses_.write(arguments_.out);
    if (!arguments_.save.empty()) model_.save(arguments_.save);
  }

  const Arguments& arguments_;
  abele::TrainingModel model_;
  Data data_;
  abele::DataLoader loader_;
  std::optional<abele::tools::Schedule> schedule_;
  Losses losses_;
  int64_t step_ = 0, kept_ = -1;
  std::string path_;  // path of the last checkpoint
};

// --- inference -------------------------------------------------------------------------------------------------------

/// The results of all calls. Joins results that have the batch's rows. Keeps one of each call for the others.
class Results {
 public:
  Results(std::vector<std::string> names, int64_t batch) : names_(std::move(names)), batch_(batch) {}

  /// rows: rows of the batch without those that fill it.
  void add(const Tensors& results, int64_t rows) {
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string name = i < names_.size() ? names_[i] : std::to_string(i);
      at::Tensor result = results[i];
      const bool has_rows = result.dim() > 0 && result.size(0) > 0 && result.size(0) % batch_ == 0;
      if (has_rows) result = result.narrow(0, 0, result.size(0) / batch_ * rows);
      if (!has_rows && rows < batch_)
        std::cerr << "abele run: " << name
                  << " of the last call is of a batch that was filled with copies of its last row\n";
      has_rows_[name] = has_rows;
      of_[name].push_back(result.clone());
    }
  }
  void write(const std::string& path) const {
    std::map<std::string, at::Tensor> file;
    for (const auto& [name, parts] : of_) file[name] = has_rows_.at(name) ? at::cat(parts) : at::stack(parts);
    abele::saveTensors(path, file);
    for (const auto& [name, tensor] : file)
      std::cout << "result " << name << " " << shapeOf(c10::toString(tensor.scalar_type()), tensor.sizes()) << "\n";
  }

 private:
  std::vector<std::string> names_;
  int64_t batch_;
  std::map<std::string, Tensors> of_;
  std::map<std::string, bool> has_rows_;
};

/// A batch with this number of rows. Copies of the last row replace missing ones.
Tensors filled(const Tensors& rows, int64_t batch) {
  Tensors all;
  for (const at::Tensor& tensor : rows) {
    const int64_t missing = batch - tensor.size(0);
    at::DimVector sizes(tensor.sizes());
    sizes[0] = missing;
    all.push_back(missing == 0 ? tensor : at::cat({tensor, tensor.narrow(0, tensor.size(0) - 1, 1).expand(sizes)}));
  }
  return all;
}

int serve(const Arguments& arguments, const abele::Options& options, const abele::StopOnSignal& stop) {
  if (!arguments.checkpoint.empty() || !arguments.save.empty() || !arguments.schedule.empty() ||
      arguments.learning_rate == arguments.learning_rate)
    refuse(ErrorCode::E0901, {.what = "--checkpoint, --save, --lr and --lr-schedule are for programs that train",
                              .at = arguments.program,
                              .found = "a program for inference"});
  abele::InferenceModel model = abele::loadInferenceModel(arguments.program, options);
  const Data data = loadData(model, arguments, /*fills_calls=*/false);
  Results results(abele::resultNames(model), data.batch);
  const int64_t calls = (data.rows + data.batch - 1) / data.batch;
  const int64_t last = arguments.steps > 0 ? std::min(calls, arguments.steps) : calls;
  std::vector<double> times;
  int64_t rows = 0;
  abele::DataLoader loader = data.loader({.drop_last = false});
  Tensors given;
  for (int64_t call = 0; call < last && !stop && loader.next(given); ++call) {
    const int64_t taken = given[0].size(0);
    const Tensors batch = filled(given, data.batch);
    const Clock::time_point begin = Clock::now();
    const Tensors found = model(batch);
    times.push_back(secondsSince(begin));
    if (!arguments.out.empty()) results.add(found, taken);
    rows += taken;
  }
  if (!arguments.out.empty() && rows > 0) results.write(arguments.out);
  double sum = 0;
  for (const double time : times) sum += time;
  std::ranges::sort(times);
  if (!times.empty())
    std::printf("%lld rows in %zu calls, %.3g s; a call: median %.3g ms, longest %.3g ms; %.4g rows a second\n",
                static_cast<long long>(rows), times.size(), sum, times[times.size() / 2] * 1e3, times.back() * 1e3,
                static_cast<double>(rows) / sum);
  if (static_cast<int64_t>(times.size()) == last) return kDone;
  std::printf("stopped by %s after call %zu of %lld\n", ::strsignal(stop.signal()), times.size(),
              static_cast<long long>(last));
  return kStopped;
}

// --- the command -----------------------------------------------------------------------------------------------------

void declare(CLI::App& app, Arguments& a) {
  constexpr int64_t kMost = 1'000'000'000'000;  // a larger number is a mistake, and may not fit an integer
  const CLI::Range one_or_more(int64_t{1}, kMost), none_or_more(int64_t{0}, kMost);
  app.add_option("program", a.program, "what save() or compileAndExport() wrote, in Python or C++")->required();
  app.add_option(
         "--data", a.data,
         "safetensors files with a row for each sample; the rows of a tensor that several files have follow one "
         "another. Batches are read from the files as they are needed")
      ->required();
  app.add_option("--inputs", a.inputs, "the data's tensors in the order of the program's inputs; default: by name")
      ->delimiter(',');
  auto* steps =
      app.add_option("--steps", a.steps, "the run ends when so many steps are done, with those of earlier runs");
  app.add_option("--epochs", a.epochs, "the same in passes over the data; default: 1")
      ->excludes(steps)
      ->check(one_or_more);
  steps->check(one_or_more);
  app.add_option("--done", a.done,
                 "steps that were done before the program was saved: count and data go on behind them")
      ->check(none_or_more);
  app.add_flag("--shuffle", a.shuffle, "a new order of the rows in each pass");
  app.add_option("--seed", a.seed, "of the order");
  app.add_option("--lr", a.learning_rate, "a new learning rate for all groups");
  app.add_option("--lr-schedule", a.schedule, abele::tools::kScheduleHelp);
  app.add_option(
      "--out", a.out,
      "safetensors file: inference: the results; training: the losses by step, and a schedule's learning rates");
  auto* folder = app.add_option("--checkpoint", a.checkpoint,
                                "folder: goes on from its newest checkpoint, and writes one at the end");
  app.add_option("--every", a.every, "steps between checkpoints")->needs(folder)->check(one_or_more);
  app.add_option("--keep", a.keep, "checkpoints that stay; 0: all")->needs(folder)->check(none_or_more);
  app.add_option("--save", a.save, "file: the trained program");
  app.add_option("--options", a.options, "file of options, as Options::loadFromFile reads it");
  app.add_option("--threads", a.threads, "of each device")->check(one_or_more);
  app.add_option("--print-every", a.print_every, "steps between lines")->check(one_or_more);
}

int run(const Arguments& arguments) {
  abele::Options options = abele::savedOptions(arguments.program);
  options.outputMode(abele::OutputMode::kDefault);  // all rows in inference, even if the program was saved for less
  if (!arguments.options.empty()) options.loadFromFile(arguments.options);
  if (arguments.threads > 0) options.threadsPerDevice(arguments.threads);
  const abele::StopOnSignal stop;
  if (abele::isTrainingProgram(arguments.program)) return Training(arguments, options).run(stop);
  return serve(arguments, options, stop);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains or serves a saved program on tensors of a file, without Python.", "abele run");
  app.footer(kFooter);
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    return statusOfWritten(run(arguments));
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << abele::UserError(ErrorCode::E0901, {.what = error.what(), .remedy = "abele run --help"}).what()
              << "\n";
  } catch (const std::exception& error) {
    std::cout.flush();
    std::cerr << error.what() << "\n";
  }
  return kError;
}
