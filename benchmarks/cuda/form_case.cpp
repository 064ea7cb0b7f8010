// Cases of a whole sequence.

#include "cuda/session.hpp"
#include "cuda/workload.hpp"

namespace mhla::cuda_bench {
namespace {

/// Data of a call on the device.
struct Workload {
  DeviceArray<Bits> q, k, v, o;
  std::vector<float> mixing;  // [M, M], on the host
  DeviceArray<float> device_mixing;
  DeviceArray<unsigned char> workspace;
  Call call;
  Planned plan;

  Workload(const Case& c, Session& session)
      : q(random_tensor(rows(c) * c.shape.width, 1, session)),
        k(random_tensor(rows(c) * c.shape.width, 2, session)),
        v(random_tensor(rows(c) * c.shape.values, 3, session)),
        o(rows(c) * c.shape.values),
        mixing(random_mixing(c.blocks())),
        device_mixing(mixing) {
    call = {c.shape.batch,
            c.shape.heads,
            static_cast<int>(c.shape.width),
            static_cast<int>(c.shape.values),
            token_blocks(c.shape),
            c.form == Form::kCausal,
            session.op,
            q.data(),
            k.data(),
            v.data(),
            device_mixing.data(),
            o.data(),
            nullptr,
            0};
    plan = planned(call, session.device);
    workspace = DeviceArray<unsigned char>(static_cast<std::int64_t>(plan.workspace_bytes));
    call.workspace = workspace.data();
    call.workspace_bytes = workspace.bytes();
  }

 private:
  static Index rows(const Case& c) { return c.shape.batch * c.shape.tokens() * c.shape.heads; }
};

}  // namespace

Result measure_form(const Case& c, Session& session) {
  Workload w(c, session);
  const auto run_form = [&](cudaStream_t stream) { run(w.call, session.device, stream); };
  Result result{.subject = c,
                .form = w.plan.form,
                .reason = w.plan.reason,
                .kernels = w.plan.kernels,
                .workspace_bytes = static_cast<double>(w.plan.workspace_bytes),
                .cost = whole_cost(c)};

  const std::vector<Row> rows = sample_rows(c.shape);
  session.stream.wait();  // until the data is there
  const std::vector<ExactRow> exact = exact_rows(c, w.call, w.mixing, rows);
  result.deviation.not_finite = run_on_poison(w.o, run_form, session);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const std::int64_t place =
        (row.batch * c.shape.tokens() + row.token) * c.shape.heads + row.head;
    compare(exact[i], fetch(w.o.data() + place * c.shape.values, c.shape.values), result.deviation);
  }
  time_right(session, run_form, result);
  return result;
}

}  // namespace mhla::cuda_bench
