"""Cost: tokens, requests and months in dollars, what moves them, and a second deployment or an API beside them."""

import streamlit as st

from pages import _charts, _cost_inputs, _cost_tables, _inputs, _verdict
from planner import units
from planner.month import bills, findings, month
from planner.sensitivity import price_spread, sensitivities, verdict

plan = _inputs.made()
st.title("Cost")
_verdict.show(verdict(plan))
if plan.cost is None:
    st.stop()

cost, by_quotes = plan.cost, price_spread(plan)
with st.container(horizontal=True):
    st.metric("A million output tokens", units.usd(cost.usd_per_million_output_tokens.value), border=True)
    st.metric("A million input tokens", units.usd(cost.usd_per_million_input_tokens.value), border=True)
    st.metric("A request", units.usd(cost.usd_per_request.value), border=True)
    st.metric("An hour", units.usd(cost.usd_per_hour), border=True)
    st.metric("A month of one deployment", units.usd(cost.usd_per_month), border=True)
st.dataframe(_cost_tables.ranges(cost, by_quotes), hide_index=True)
st.caption(
    f"Prefill takes {units.share(cost.prefill_share)} of the time and is charged to input tokens. The speed's range "
    "held four of five published measurements of its kind; price and speed vary independently."
)

st.subheader("A month of the load")
requests = _cost_inputs.requests_per_month(plan.workload)
bought = month(cost, requests)
with st.container(horizontal=True):
    st.metric("Deployments", units.count(bought.deployments.value), border=True, help="In use; spares are in the price")
    st.metric("A month", units.usd(bought.usd.value), border=True)
    st.metric("A request, idle time paid", units.usd(bought.usd_per_request), border=True)
    st.metric("Used of what is paid", units.share(bought.filled), border=True)

st.subheader("What moves the price of a million output tokens")
moves = sensitivities(plan)
_charts.show(_charts.sensitivities(moves, cost.usd_per_million_output_tokens.value), key="sensitivities")
st.dataframe(_cost_tables.sensitivities(moves), hide_index=True)

st.subheader("Two plans side by side")
second = _cost_inputs.other(plan)
api_usd = _cost_inputs.api_usd(plan.workload)
plans = _cost_tables.named(plan, second)
costs = {name: each.cost for name, each in plans.items() if each.cost is not None}
months = {name: month(each, requests) for name, each in costs.items()}
st.table(_cost_tables.side_by_side(plans, months), border="horizontal", hide_index=True)
_charts.show(_charts.bills(bills(costs, requests, api_usd)), key="bills")
st.markdown(_verdict.escaped("\n".join(f"- {each}" for each in findings(costs, requests, api_usd))))

st.subheader("What an hour is paid for")
left, right = st.columns(2)
left.dataframe(_cost_tables.hour(cost.hour), hide_index=True)
right.dataframe(_cost_tables.quotes(plan), hide_index=True)
st.subheader("The command")
st.code(plan.deployment.serve_command(plan.model.name), language="bash")
