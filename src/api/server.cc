// abele::Server: requests in a queue for one model.
#include "abele/server.h"

#include "abele/signature.h"
#include "api/core.h"
#include "base/error.h"
#include "data/batcher.h"

namespace abele {
namespace {

int64_t batchRows(InferenceModel& model, const ServerOptions& options) {
  const bool is_compiled = model.isCompiled();  // throws if the model was moved from
  if (options.batch_rows != 0) return options.batch_rows;
  ABELE_REQUIRE(is_compiled, E0705,
                {.what = "a server of a model that is not compiled, without a number of rows",
                 .remedy = "compile() the model, load a compiled one, or set ServerOptions::batch_rows"});
  const std::vector<ProgramValue> inputs = inputsOf(model);
  ABELE_REQUIRE(!inputs.empty() && !inputs[0].sizes.empty(), E0708,
                {.what = "a server of a model that takes no rows", .expected = "a tensor with rows as first input"});
  return inputs[0].sizes[0];
}

}  // namespace

struct Server::Impl {
  InferenceModel model;
  data::Batcher batcher;  // declared after the model, so that its thread ends first

  Impl(InferenceModel given, const ServerOptions& options)
      : model(std::move(given)),
        batcher([this](const std::string& form,
                       const data::Batcher::Tensors& batch) { return ModelAccess::enter(model)->run(batch, form); },
                {.batch_rows = batchRows(model, options),
                 .longest_wait = options.longest_wait,
                 .most_waiting_rows = options.most_waiting_rows,
                 .most_kinds = options.most_shapes}) {}
};

Server::Server(InferenceModel model, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Server::~Server() = default;

std::vector<at::Tensor> Server::operator()(const std::vector<at::Tensor>& inputs) { return submit(inputs).get(); }
std::future<std::vector<at::Tensor>> Server::submit(const std::vector<at::Tensor>& inputs) {
  return *submitFlat({inputs, std::string(inputs.size(), 't')}, /*wait=*/true);
}
std::optional<std::future<std::vector<at::Tensor>>> Server::submitFlat(const detail::Flat& inputs, bool wait) {
  return impl_->batcher.submit(inputs.form, inputs.tensors, wait);
}
void Server::stop() { impl_->batcher.stop(); }

ServerStatistics Server::statistics() const { return impl_->batcher.statistics(); }

}  // namespace abele
