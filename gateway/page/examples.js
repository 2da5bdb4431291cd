// Example prompts, one of each kind of work. Own texts.

export const EXAMPLES = [
  {
    name: "Summarise",
    about: "a news item",
    question: `Summarise the following news item in three sentences.

The footbridge at Alder Weir reopened on Saturday after fourteen months of repairs, two months later than planned. The wooden bridge, which links the old mill quarter with the railway station, had been closed when inspectors found that several of its main beams had rotted from the inside. The town council decided to rebuild the bridge in larch on steel supports, which should last for at least sixty years. The work cost 1.3 million pounds, a third more than the first estimate. The new bridge is half a metre wider than the old one, has a handrail at two heights and is lit by small lamps that dim when nobody is near.`,
  },
  {
    name: "Code",
    about: "add type hints",
    question: `Write this function again, with type hints and a docstring.

def total_price(items, discount):
    total = 0
    for item in items:
        total = total + item.price * item.quantity
    if discount is not None:
        total = total - total * discount
    return total`,
  },
  {
    name: "Support",
    about: "a customer's question",
    system: `You are the support assistant of Northwind Outfitters, a shop for outdoor clothing. Be friendly and brief, and use the standard answers.
Standard answer, returns: "You can return anything unworn within 30 days. Print the label from your account, put it on the parcel and hand it in at any post office. We refund you within five working days of its arrival."
Standard answer, delivery: "Parcels arrive within three working days. If the tracking page has not changed for five days, tell us your order number and we will look for the parcel."`,
    question: "I bought a rain jacket three weeks ago and have not worn it. How do I send it back, and when will I get my money?",
  },
  {
    name: "Extract",
    about: "a message as JSON",
    question: `Turn this message into JSON with the keys "order_number", "items" (a list of objects with "name" and "quantity") and "delivery_date". Output only the JSON.

Good morning, I am writing about order KX-4471. I ordered two desk lamps, one bookshelf and six coat hooks, and everything was supposed to be delivered on 14 May.`,
  },
  {
    name: "Explain",
    about: "hard to guess",
    question: "Why does bread dough rise, and why does it rise more slowly in a cold kitchen?",
  },
];
